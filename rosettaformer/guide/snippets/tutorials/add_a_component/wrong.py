import numpy as np

dtypes = ("float64", "float32")


def rms_norm(case):
    x = case.inputs["x_btd"]
    x = x - x.mean(-1, keepdims=True)  # as a layer norm does
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + case.config.epsilon) * case.parameters["scale"]
