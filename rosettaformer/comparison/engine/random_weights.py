"""Random weights that show what a fresh model hides: biases, scales of norms, forms of an activation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..matching.layer_matching import Network
from ..matching.variable_matching import Pair
from ..models.base import Variable
from ..models.behaviour import INPUTS

SPREAD = 0.3  # of biases, and of scales around what they are
INSIDE = {"i", *INPUTS, *"xyz"}  # the letters of the axes that a kernel sums over


def made(values: Mapping[str, np.ndarray], network: Network, seed: int) -> dict[str, np.ndarray]:
    """Returns random values of the variables that are trained or run along."""
    rng, found = np.random.default_rng([seed, 2]), dict[str, np.ndarray]()
    for several in network.variables.values():
        for one in several:
            name, before = one["name"], values[one["name"]]
            if one["required"] and (one["trainable"] or one["role"] in ("mean", "variance")):
                found[name] = drawn_for(rng, one, before)
    return found


def needless(network: Network, table: Sequence[Pair], which: int) -> dict[str, str]:
    """Returns the variables of a side that the other side need not have, as their function can do without them, and why: they are zero.

    That is a table of one row, and the bias of a layer whose output batch norm alone is given.
    """
    sides = ("left", "right")
    alone = {row[sides[which]] for row in table if row[sides[which]] and not row[sides[1 - which]]}
    found = {}
    for path, several in network.variables.items():
        normed = {network.kind(other) for other in network.after(path)} == {"batch_norm"}
        for one in several:
            if one["name"] in alone and one["role"] == "table" and one["shape"][0] == 1:
                found[one["name"]] = "it adds the same to every token"
            elif one["name"] in alone and one["role"] == "bias" and normed:
                found[one["name"]] = "batch norm, which follows, has an offset"
    return found


def visible(variables: Sequence[Variable], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns random values of the variables that are trained, by which a layer shows what it is."""
    rng = np.random.default_rng(0)
    return {one.name: drawn_for(rng, vars(one), values[one.name]) for one in variables if one.trainable and one.required}


def drawn_for(rng: np.random.Generator, one: Mapping[str, Any], before: np.ndarray) -> np.ndarray:
    """Returns a random value of a variable, with the role and the axes that are known."""
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
    """The number of terms in a sum over a kernel's inputs."""
    letters = one["axes"].replace("-", "").split()
    if len(letters) == len(shape) and INSIDE & {*letters}:
        return math.prod(size for letter, size in zip(letters, shape, strict=True) if letter in INSIDE)
    return max(shape[0], math.prod(shape) // max(shape))
