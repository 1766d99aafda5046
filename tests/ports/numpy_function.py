"""Layer normalization as one NumPy function."""

import numpy as np

from rosettaformer.ports import CLASSIC

config = CLASSIC
dtypes = ("float64", "float32")


def layer_norm(case):
    x = case.inputs["x_btd"]
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + x.dtype.type(case.config.epsilon)) * case.parameters["scale"] + case.parameters["offset"]
