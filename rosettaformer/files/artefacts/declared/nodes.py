"""Finds dropout, random numbers, batch statistics and finite mask values in a graph."""

import math
from collections.abc import Collection, Hashable, Iterator, Sequence

import ml_dtypes
import numpy as np

from ..constants.reading import Constants, Node
from . import words

LEAST = 1e3  # smallest magnitude that may be meant as infinity
MOST = 0.99  # fraction of a dtype's largest number from which on a mask hides any score
_ZERO = {"float16": 17.3, "bfloat16": 104.0, "float32": 104.0, "float64": 745.0}  # dtype -> smallest x where exp(-x) is 0
_BOUNDING = {"clip", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "clipbyvalue", "pad"}
_CHOOSING = {"where", "select", "selectv2", "select_v2", "masked_fill", "call"}
_PRODUCTS, _DIFFERENCES = {"mul", "multiply"}, {"sub", "subtract"}


def of_training(constants: Constants, nodes: Sequence[Node]) -> Iterator[str]:
    """Yields a sentence for each operation of training. nodes: those that affect an output.

    A runtime may remove such operations: ONNX Runtime's optimizer removes dropout.
    """
    reached = [node for node in nodes if node.random and not any(_is_zero(constants.value(key)) for key in node.switches)]
    for why in dict.fromkeys(node.random for node in reached):
        places = dict.fromkeys(node.place for node in reached if node.random == why)
        yield words.TRAINING.format(why=why, places=words.few(places))


def live(constants: Constants, functions: Collection[str] = ()) -> list[Node]:
    """Returns the operations that affect an output of these functions, in file order."""
    producers: dict[object, list[int]] = {}
    for number, node in enumerate(constants.nodes):
        for key in node.outputs:
            producers.setdefault(key, []).append(number)
    entries = [keys for name, keys in constants.entries.items() if not functions or name in functions]
    pending, seen, found = [key for keys in entries for key in keys], set[object](), set[int]()
    while pending:
        if (key := pending.pop()) in seen:
            continue
        seen.add(key)
        for number in producers.get(key, ()):
            node = constants.nodes[number]
            found.add(number)
            pending += [*node.inputs, *(own for body in node.bodies for own in constants.results.get(body, ()))]
    return [node for number, node in enumerate(constants.nodes) if number in found]


def _is_zero(value: np.ndarray | None) -> bool:
    return value is not None and value.size == 1 and not value.any()


def masks(constants: Constants, nodes: Sequence[Node]) -> Iterator[str]:
    """Yields a sentence for every finite number used as minus infinity.

    It hides a token only while scores are small. nodes: those that affect an output.
    """
    wide = any(weight.dtype in ("float64", "double", "f64") for weight in constants.weights.values())
    places: dict[tuple[float, str, bool], dict[str, None]] = {}
    for node in nodes:
        known = sum(constants.value(key) is not None for key in node.inputs)
        replaces = node.operation in _CHOOSING and known == 1  # choosing between it and 0 would make a mask to add
        for value in _bounds(constants, node):
            dtype = "float32" if value.dtype == np.float64 and not wide else value.dtype.name  # plain numbers have their tensor's
            number = float(value.min())
            if number > -MOST * float(ml_dtypes.finfo(dtype).max):
                places.setdefault((number, dtype, replaces), {})[node.place] = None
    for (number, dtype, replaces), named in places.items():
        condition = words.REPLACED if replaces else words.ADDED
        yield words.MASK.format(number=number, places=words.few(named), condition=condition, limit=-number - _ZERO[dtype])


def _bounds(constants: Constants, node: Node) -> Iterator[np.ndarray]:
    """Yields the constants with which a node may mask: a number, or an array of it and 0."""
    for key in () if node.operation in _BOUNDING else node.inputs:
        value = constants.value(key)
        if value is None or not value.size or value.dtype.name not in _ZERO:
            continue
        number = value.min()
        if np.isfinite(number) and number <= -LEAST and ((value == number) | (value == 0)).all():
            yield value
        elif value.size == 1 and np.isfinite(number) and number >= LEAST and _is_inverted(constants, node, key):
            yield -value


def _is_inverted(constants: Constants, node: Node, key: Hashable) -> bool:
    """Whether a positive number multiplies `mask - 1`, or a subtracted `1 - mask`."""
    if node.operation not in _PRODUCTS:
        return False
    factors = {*node.inputs} - {key}
    differences = [one for one in constants.nodes if one.operation in _DIFFERENCES and len(one.inputs) == 2]
    inner = [one for one in differences if factors & {*one.outputs}]
    subtracted = any(one.inputs[1] in node.outputs for one in differences)
    return any(_is_one(constants.value(one.inputs[1])) or (subtracted and _is_one(constants.value(one.inputs[0]))) for one in inner)


def _is_one(value: np.ndarray | None) -> bool:
    return value is not None and value.size == 1 and math.isclose(float(value.ravel()[0]), 1)
