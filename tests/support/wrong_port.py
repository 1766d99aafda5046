"""A port that defines one component, with epsilon outside the square root. Used by the tests of the command."""

import numpy as np

from rosettaformer.ports import CLASSIC, Case

config = CLASSIC


def layer_norm(case: Case) -> np.ndarray:
    """`(x - mean) / (std + epsilon)`, instead of `(x - mean) / sqrt(variance + epsilon)`."""
    x = case.inputs["x_btd"]
    normalised = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + case.config.epsilon)
    return (normalised * case.parameters["scale"] + case.parameters["offset"]).astype(x.dtype)
