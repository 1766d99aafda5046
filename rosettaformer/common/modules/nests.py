"""Nested inputs and outputs of modules: mappings, tuples, lists and dataclasses."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def leaves(value: Any) -> Iterator[Any]:
    """Yields the leaves of a nest in order."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    elif _is_record(value):
        value = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Maps every leaf of a nest, in the order of `leaves`; unchanged dataclasses are kept."""
    if isinstance(value, Mapping):
        return {name: mapped(item, function) for name, item in value.items()}
    if _is_record(value):
        before = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        after = {name: mapped(item, function) for name, item in before.items()}
        changed = {name: item for name, item in after.items() if item is not before[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, (tuple, list)):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value)


def exchanged(nest: Any, arrays: Sequence[np.ndarray], is_tensor: Callable[[Any], bool], like: Callable[[np.ndarray, Any], Any]) -> Any:
    """Replaces a nest's tensors by arrays, in order. like: converts an array to a similar tensor.

    Raises ValueError if their number or a shape differs.
    """
    count = sum(map(is_tensor, leaves(nest)))
    if count != len(arrays):
        raise ValueError(f"takes {count} arrays; the other side has {len(arrays)}")
    waiting = iter(arrays)

    def fill(value: Any) -> Any:
        if not is_tensor(value):
            return value
        array = next(waiting)
        if array.dtype.kind in "iuf" and splits(array.shape, value.shape):  # not masks, whose meaning often differs with the shape
            array = array.reshape(tuple(value.shape))
        if tuple(array.shape) != tuple(value.shape):
            raise ValueError(f"takes the shape {tuple(value.shape)}; the other side's input has {tuple(array.shape)}")
        return like(array, value)

    return mapped(nest, fill)


def splits(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one shape is the other with some axes split, in the same order of elements."""
    products = [set(itertools.accumulate(shape, operator.mul, initial=1)) for shape in (one, other)]
    return math.prod(one) == math.prod(other) != 0 and (products[0] <= products[1] or products[1] <= products[0])


def _is_record(value: Any) -> bool:
    """Whether the value is a dataclass for data. Linen modules are ones, but not for data."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value)
