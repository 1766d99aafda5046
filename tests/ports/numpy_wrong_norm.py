"""Layer normalization as one NumPy function, with the sample standard deviation and epsilon outside the root."""

from rosettaformer.ports import CLASSIC

config = CLASSIC
dtypes = ("float64", "float32")


def layer_norm(case):
    x = case.inputs["x_btd"]
    mean = x.mean(axis=-1, keepdims=True)
    deviation = x.std(axis=-1, ddof=1, keepdims=True)
    return case.parameters["scale"] * (x - mean) / (deviation + x.dtype.type(case.config.epsilon)) + case.parameters["offset"]
