"""Random weights that reveal biases, norm scales and activations, unlike freshly initialized ones."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..matching.layer_matching import Network
from ..matching.variable_matching import Pair
from ..models.base import Variable
from ..models.behaviour import INPUTS

SPREAD = 0.3  # standard deviation of biases, and of scales around their values
INSIDE = {"i", *INPUTS, *"xyz"}  # axes that a kernel sums over


def made(values: Mapping[str, np.ndarray], network: Network, seed: int) -> dict[str, np.ndarray]:
    """Returns random values of the trainable variables and running statistics."""
    rng, found = np.random.default_rng([seed, 2]), dict[str, np.ndarray]()
    for several in network.variables.values():
        for one in several:
            name, before = one["name"], values[one["name"]]
            if one["required"] and (one["trainable"] or one["role"] in ("mean", "variance")):
                found[name] = drawn_for(rng, one, before)
    return found


def needless(network: Network, table: Sequence[Pair], which: int) -> dict[str, str]:
    """Returns the unmatched variables of a side that can be zero without changing the set of
    functions, and why.

    These are tables with one row, and biases directly before a batch norm.
    """
    sides = ("left", "right")
    alone = {row[sides[which]] for row in table if row[sides[which]] and not row[sides[1 - which]]}
    found = {}
    for path, several in network.variables.items():
        normed = {network.kind(other) for other in network.after(path)} == {"batch_norm"}
        for one in several:
            if one["name"] in alone and one["role"] == "table" and one["shape"][0] == 1:
                found[one["name"]] = "it adds the same vector to every token"
            elif one["name"] in alone and one["role"] == "bias" and normed:
                found[one["name"]] = "the following batch norm has an offset"
    return found


def visible(variables: Sequence[Variable], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns random values of the trainable variables, which reveal the kind of each layer."""
    rng = np.random.default_rng(0)
    return {one.name: drawn_for(rng, vars(one), values[one.name]) for one in variables if one.trainable and one.required}


def drawn_for(rng: np.random.Generator, one: Mapping[str, Any], before: np.ndarray) -> np.ndarray:
    """Returns a random value of a variable, by its role and axes."""
    drawn, role = rng.standard_normal(before.shape), one["role"].rpartition(".")[2]
    if role == "variance":
        drawn = np.exp(SPREAD * drawn)
    elif role == "table":
        drawn = drawn / 2
    elif role == "scale" or before.ndim < 2:
        drawn = (before if role == "scale" else 0) + SPREAD * drawn
    else:
        drawn = drawn / math.sqrt(_inside(one, before.shape))
    return np.asarray(drawn, np.float32)


def _inside(one: Mapping[str, Any], shape: Sequence[int]) -> int:
    """Returns the number of terms in a kernel's sums."""
    letters = one["axes"].replace("-", "").split()
    if len(letters) == len(shape) and INSIDE & {*letters}:
        return math.prod(size for letter, size in zip(letters, shape, strict=True) if letter in INSIDE)
    return max(shape[0], math.prod(shape) // max(shape))
