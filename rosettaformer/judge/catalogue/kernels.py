"""Known bugs of the projections' kernels and biases: layout, order, mix-ups."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .alteration import Altered, Array, Variants, on_arguments

Tree = Mapping[str, Any]
OUTPUT = "bthe,hed->btd"
PROJECTIONS = {"query": "btd,dhk->bthk", "key": "bsd,dgk->bsgk", "value": "bsd,dge->bsge", "output": OUTPUT}  # by their contractions
FUSED = ("query", "key", "value")
SITES = ("attention.project", "attention.attend")  # the functions that take their parameters


def of_projection(change: Callable[..., Tree], *names: str) -> Callable:
    """Changes the parameters of these projections: (parameters, number of input axes) -> same."""
    meant = {PROJECTIONS[name] for name in names or PROJECTIONS}

    def altered(original: Callable, subscripts: str, parameters: Tree, x: Array) -> Array:
        return original(subscripts, change(parameters, 1 + (subscripts == OUTPUT)) if subscripts in meant else parameters, x)

    return altered


def without_bias(parameters: Tree, inputs: int = 1) -> Tree:
    """Drops the bias."""
    return {"kernel": parameters["kernel"]}


def transposed(parameters: Tree, inputs: int = 1) -> Tree:
    """Stores the kernel outputs first and reads its bytes inputs first; transposes a square one."""
    kernel = parameters["kernel"]
    stored = np.moveaxis(kernel, range(inputs), range(-inputs, 0))
    return dict(parameters) | {"kernel": np.ascontiguousarray(stored).reshape(kernel.shape)}


def _transposed_if_square(parameters: Tree, inputs: int) -> Tree:
    rows, columns = (math.prod(axes) for axes in np.split(parameters["kernel"].shape, [inputs]))
    return transposed(parameters, inputs) if rows == columns else parameters


def interleaved(parameters: Tree, inputs: int) -> Tree:
    """Reads `d h k` as `d k h`, `h e d` as `e h d`, and the bias `h k` as `k h`."""
    first, second, third = parameters["kernel"].shape
    if inputs == 2:
        return dict(parameters) | {"kernel": parameters["kernel"].reshape(second, first, third).swapaxes(0, 1)}
    return {name: value.reshape(*value.shape[:-2], third, second).swapaxes(-2, -1) for name, value in parameters.items()}


def spread(parameters: Tree, inputs: int) -> Tree:
    """Reads `d k h` as `d h k`, `e h d` as `h e d`, `k h` as `h k`: undoes `interleaved`."""
    kernel = parameters["kernel"]
    if inputs == 2:
        return dict(parameters) | {"kernel": kernel.swapaxes(0, 1).reshape(kernel.shape)}
    return {name: value.swapaxes(-2, -1).reshape(value.shape) for name, value in parameters.items()}


def of_bias(change: Callable[[Tree, int], Tree]) -> Callable[[Tree, int], Tree]:
    """Changes only a projection's bias, if the bias has a head axis."""

    def changed(parameters: Tree, inputs: int) -> Tree:
        heads = "bias" in parameters and parameters["bias"].ndim == 2
        return dict(parameters) | {"bias": change(parameters, inputs)["bias"]} if heads else parameters

    return changed


def exchanged(names: Sequence[str], order: Sequence[str]) -> Callable:
    """Reads these projections in another order, if their kernels have the same shape."""

    def in_order(parameters: Tree) -> Tree:
        same = len({parameters[name]["kernel"].shape for name in names}) == 1
        return dict(parameters) | {name: parameters[other] for name, other in zip(names, order, strict=True) if same}

    return on_arguments(parameters=in_order)


def _interleaved_by_head(parameters: Tree) -> Tree:
    """Reads the columns query | key | value, each `h k`, as `h (query | key | value) k`."""
    if len({parameters[name]["kernel"].shape for name in FUSED}) > 1:
        return parameters
    read: dict[str, dict[str, Array]] = {name: {} for name in FUSED}
    for leaf in parameters["query"]:
        fused = np.stack([parameters[name][leaf] for name in FUSED], axis=-3)  # d 3 h k, or 3 h k
        *outer, _, heads, size = fused.shape
        for index, name in enumerate(FUSED):
            read[name][leaf] = fused.reshape(*outer, heads, 3, size)[..., index, :]
    return dict(parameters) | read


def _by_groups(parameters: Tree) -> Tree:
    """Reads the columns query | key | value as `g (the group's queries | key | value)`."""
    groups = parameters["key"]["kernel"].shape[1]
    read: dict[str, dict[str, Array]] = {name: {} for name in FUSED}
    for leaf in parameters["query"]:
        shapes = [parameters[name][leaf].shape[-2:] for name in FUSED]
        outer = parameters["query"][leaf].shape[:-2]
        fused = np.concatenate([parameters[name][leaf].reshape(*outer, -1) for name in FUSED], axis=-1).reshape(*outer, groups, -1)
        ends = np.cumsum([heads * size // groups for heads, size in shapes])[:-1]
        for name, shape, part in zip(FUSED, shapes, np.split(fused, ends, axis=-1), strict=True):
            read[name][leaf] = part.reshape(*outer, *shape)
    return dict(parameters) | read


ALTERED: Altered = {
    "MHA3": dict.fromkeys(SITES, on_arguments(parameters=_interleaved_by_head)),
    "MHA4": {"attention.projection": of_projection(interleaved)},
    "MHA5": {"attention.projection": of_projection(_transposed_if_square)},
    "MHA6": dict.fromkeys(SITES, exchanged(("key", "value"), ("value", "key"))),
    "MHA8": {"attention.projection": of_projection(without_bias)},
    "MHA12": {"attention.projection": of_projection(without_bias, "key")},
}
VARIANTS: Variants = {
    "MHA3": {
        "the fused query/key/value kernel is split per group (its queries, its key, its value)": dict.fromkeys(
            SITES, on_arguments(parameters=_by_groups)
        )
    },
}
