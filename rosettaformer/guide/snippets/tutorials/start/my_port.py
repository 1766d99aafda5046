from rosettaformer.ports import CLASSIC

config = CLASSIC
dtypes = ("float64", "float32")


def layer_norm(case):
    x = case.inputs["x_btd"]
    deviation = x.std(-1, ddof=1, keepdims=True)
    normalised = (x - x.mean(-1, keepdims=True)) / (deviation + case.config.epsilon)
    return normalised * case.parameters["scale"] + case.parameters["offset"]
