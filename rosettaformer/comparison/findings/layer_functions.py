"""Describes a layer by what it does to its input: nothing, a product, or an elementwise function."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..matching import layouts, relations
from ..matching.relations import Relation
from . import known_parts
from .recorded_calls import Calls, Key

SIDES = ("left", "right")
MOST, LARGEST = 512, 1 << 22  # maximum number of calls, and of outputs, that measure a matrix


def unchanged(calls: Calls, keys: Sequence[Key], outputs: Sequence[np.ndarray]) -> Relation:
    """Returns which side returns its input, if one does."""
    for which, y in enumerate(outputs):
        x = calls.input_of(which, keys[which][0])
        if x is not None and x.size == y.size and layouts.agree(x.reshape(y.shape), y):
            return Relation("identity", f"the {SIDES[which]} returns its input unchanged")
    return relations.NONE


def said(calls: Calls, keys: Sequence[Key], outputs: Sequence[np.ndarray], weights: bool) -> Relation:
    """Relates the products, or the elementwise functions, by which both sides compute a layer's
    outputs.

    weights: whether both have the same weights.
    """
    if found := _products(calls, keys):
        return Relation(found.id, f"{'the weights are equal, but as the layers apply them, ' * weights}{found.text}")
    given = calls.input_of(0, keys[0][0])
    if given is not None and given.dtype.kind == "f" and (text := known_parts.elementwise({"its input": given}, outputs)):
        return Relation("functions", text)
    texts = [known_parts.elementwise({path: array}, outputs) for (path, _), array in zip(keys, outputs, strict=True)]
    return Relation("functions", next((text for text in texts if known_parts.UNKNOWN not in text), ""))


def _products(calls: Calls, keys: Sequence[Key]) -> Relation:
    """Relates the matrices by which both layers multiply their inputs, or names another layer's
    kernel that one applies.
    """
    pair = calls.pair(*keys)
    if any(len(call["inputs"]) != 1 or call["inputs"][0].dtype.kind != "f" for call in pair):
        return relations.NONE
    rows = min(math.prod(call["inputs"][0].shape[:-1]) for call in pair)
    left, right = (_matrix(calls, which, key, rows) for which, key in enumerate(keys))
    if left is None or right is None or layouts.agree(left, right):
        return relations.NONE
    if found := relations.relation(left, right, relations.KERNEL):
        return found
    for which, matrix in enumerate((left, right)):
        values = calls.sides[which].call("values")
        for one in itertools.chain.from_iterable(calls.networks[which].variables.values()):
            if one["role"] == "kernel" and one["layer"] != keys[which][0] and values[one["name"]].size == matrix.size:
                kernel = matrix if one["axes"].startswith("i") else matrix.T
                if layouts.agree(kernel, values[one["name"]].reshape(kernel.shape)):
                    return Relation("another kernel", f"the {SIDES[which]} applies {one['name']}")
    return relations.NONE


def _matrix(calls: Calls, which: int, key: Key, rows: int) -> np.ndarray | None:
    """Returns the matrix by which a layer multiplies its input, measured on one-hot inputs; None
    unless the layer is linear.

    rows: number of vectors in the input.
    """
    call = calls.by_key[which]["float32"][key]
    x, y = call["inputs"][0], call["outputs"][0].reshape(rows, -1)
    width = x.size // rows
    count = width // rows + 1
    if count > MOST or count * y.size > LARGEST:
        return None
    probes = np.split(np.eye(count * rows, width), count)  # the last rows are zero
    answers = calls.sides[which].call("force", [(*key, [probe.reshape(x.shape)]) for probe in probes], "float64")
    if any(isinstance(answer, str) for answer in answers):
        return None
    outputs = np.concatenate([answer[0].reshape(rows, -1) for answer in answers])
    matrix = outputs[:width] - outputs[width]
    return matrix if layouts.agree(y, x.reshape(rows, -1) @ matrix + outputs[width]) else None
