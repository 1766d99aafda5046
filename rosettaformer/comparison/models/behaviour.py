"""Recognizes dense layers, norms and tables by their behavior, whatever their class is called.

A layer with a kernel is dense if its first output is linear in its input, as a router's is; a layer
with one or two vectors is a norm if its output is the normalized input times one of them; a layer
that outputs rows of a matrix is a table. Experts are recognized by the sizes of their kernels.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..explaining import Explaining
from .base import Arrays, Layer, LayerCall, Variable

CLOSE = 1e-4  # relative to the largest output: far above rounding, far below a wrong hypothesis
INPUTS, OUTPUTS = "rst", "pqu"  # letters of several contracted axes, and of several remaining ones
LEARNED = ("", "embedding")  # the kinds that are examined
OFFSETS = range(4)  # rows that a table of positions may skip
FIRST_ROW = "first row"  # setting of a table of positions: the row of the first token
Activate = Callable[[str, list[np.ndarray]], list[np.ndarray] | None]


@dataclass
class Found:
    """A recognized layer.

    roles: role and axes of its variables, by name; other variables are unused.
    """

    kind: str
    roles: dict[str, tuple[str, str]]
    hyperparameters: dict[str, Any] = field(default_factory=dict)


def learn(
    layers: Sequence[Layer],
    variables: Sequence[Variable],
    calls: Sequence[LayerCall],
    values: Arrays,
    activate: Activate,
    explaining: Explaining,
) -> None:
    """Recognizes layers of unknown kind, and their variables, from their first calls.

    activate: `Model.activate` in float32.
    """
    first: dict[str, LayerCall] = {}
    for call in calls:
        first.setdefault(call.path, call)
    once = {path for path in first if sum(call.path == path for call in calls) == 1}
    for layer in layers:
        own = [one for one in variables if one.layer == layer.path]
        known = (layer.kind not in LEARNED and any(one.role for one in own)) or any(one.canonical for one in own)
        if known or not own or layer.path not in first:
            continue
        call = first[layer.path]
        if not call.outputs or not call.inputs:
            continue
        held = {one.name: values[one.name] for one in own if one.trainable}
        found = explaining(f"kind of {layer.path}", _found, call, held, activate)
        if found is None:
            continue
        layer.kind = found.kind
        epsilon = [value for name, value in layer.scalars.items() if "eps" in name and isinstance(value, float)]
        named = {"epsilon": epsilon[0]} if found.kind.endswith("_norm") and epsilon else {}
        layer.hyperparameters = found.hyperparameters | named | layer.hyperparameters
        for one in own:
            if one.name in found.roles:
                one.role, one.axes = found.roles[one.name]
                one.required &= found.kind != "embedding" or one.shape[0] > 1  # a single row for all tokens is a constant
            elif layer.path in once:
                one.required = False


def same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Returns whether two calls agree up to rounding."""
    if len(one) != len(other) or any(first.shape != second.shape for first, second in zip(one, other, strict=True)):
        return False
    pairs = [pair for pair in zip(one, other, strict=True) if np.isfinite(pair[0]).all()]
    return all(np.array_equal(*pair) or _close(*pair) for pair in pairs)


def _found(call: LayerCall, own: Arrays, activate: Activate) -> Found | None:
    with np.errstate(all="ignore"):
        found = (kind(call, own, activate) for kind in (_table, _norm, _dense, _experts))
        return next(filter(None, found), None)


def _table(call: LayerCall, own: Arrays, activate: Activate) -> Found | None:
    """`y = c table[x + offset]` of integers, or `y_t = table[t + offset]` whatever the input is."""
    x, y = call.inputs[0], call.outputs[0]
    places = [x] * (x.dtype.kind in "iu") + [np.broadcast_to(np.arange(y.shape[-2]), y.shape[:-1])] * (y.ndim > 1)
    for (name, table), place, offset in itertools.product(own.items(), places, OFFSETS):
        index = place + offset
        if table.ndim != 2 or y.shape[-1:] != table.shape[1:] or not index.size or index.min() < 0 or index.max() >= len(table):
            continue
        rows = table[index]
        if rows.shape != y.shape or not rows.any():
            continue
        factor = float((rows * y).sum(dtype=np.float64) / (rows * rows).sum(dtype=np.float64))
        if _close(factor * rows, y):
            found: dict[str, Any] = {} if np.isclose(factor, 1, rtol=1e-5) else {"multiplied by": float(np.float32(factor))}
            in_turn = index.ndim > 1 and index.shape[-1] > 1 and (index == index.flat[0] + np.arange(index.shape[-1])).all()
            found |= {FIRST_ROW: int(index.flat[0])} if in_turn else {}
            return Found("embedding", {name: ("table", "v d")}, found)
    return None


def _norm(call: LayerCall, own: Arrays, activate: Activate) -> Found | None:
    """`y = (x - m) / sqrt(v + epsilon) (scale + 0 or 1) + offset`, with or without the mean m."""
    x, y = call.inputs[0], call.outputs[0]
    if x.dtype.kind != "f" or x.shape != y.shape or x.ndim < 2 or not 1 <= len(own) <= 2 or x.shape[-1] < 2:
        return None
    if any(vector.shape != x.shape[-1:] for vector in own.values()):
        return None
    shows = np.abs(x).max(axis=-1) > 0  # rows of zeros, such as an embedding at padding, carry no information
    wide, given = x[shows].astype(np.float64), y[shows].astype(np.float64)
    for names in itertools.permutations(own):
        scale, offset = own[names[0]].astype(np.float64), own[names[1]] if len(names) > 1 else 0.0
        for centred, more in itertools.product((True, False), (0.0, 1.0)):
            away = wide - wide.mean(axis=-1, keepdims=True) if centred else wide
            raw, shown = away * (scale + more), given - offset
            factor = (raw * shown).sum(axis=-1) / (raw * raw).sum(axis=-1)
            if not (np.isfinite(factor).all() and _close(raw * factor[..., None], shown)):
                continue
            variance = (away * away).mean(axis=-1)
            epsilon = float(np.median(factor**-2.0 - variance))
            if not _close(raw / np.sqrt(variance + max(epsilon, 0.0))[..., None], shown):
                continue
            roles = {names[0]: ("scale", "d")} | dict.fromkeys(names[1:], ("offset", "d"))
            return Found("layer_norm" if centred else "rms_norm", roles, {"1 + scale": bool(more)})
    return None


def _dense(call: LayerCall, own: Arrays, activate: Activate) -> Found | None:
    """`y = x W + b` over the last axes of x, or an activation of it."""
    x, y = call.inputs[0], call.outputs[0]
    kernels = [name for name, array in own.items() if array.ndim > 1]
    if x.dtype.kind != "f" or not 1 <= len(own) <= 2 or not kernels:
        return None
    for name in kernels:
        for inside, product in _contracted(x, own[name]):
            if product.shape != y.shape:
                continue
            biases = [other for other in own if other != name]
            if biases and product.shape[-own[biases[0]].ndim :] != own[biases[0]].shape:
                continue
            linear = product + own[biases[0]] if biases else product
            active = None if _close(linear, y) else activate(call.path, [linear])
            if not _close(linear, y) and (active is None or not _close(active[0], y)):
                continue
            inner, outer = _letters(len(inside), "i", INPUTS), _letters(own[name].ndim - len(inside), "o", OUTPUTS)
            letters = dict(zip(inside, inner, strict=True))
            rest = iter(outer)
            axes = " ".join(letters[axis] if axis in letters else next(rest) for axis in range(own[name].ndim))
            roles = {name: ("kernel", axes)} | {bias: ("bias", " ".join(outer[-own[bias].ndim :])) for bias in biases}
            return Found("dense", roles, {"bias": bool(biases)} | ({"activation": "linear"} if active is None else {}))
    return None


def _experts(call: LayerCall, own: Arrays, activate: Activate) -> Found | None:
    """Kernels of e experts: of a gate and a hidden layer, fused or apart, and of an output back to the width of x."""
    width, shapes = call.inputs[0].shape[-1:], {name: array.shape for name, array in own.items() if array.ndim == 3}
    if not width or any(shape[1:].count(width[0]) != 1 for shape in shapes.values()) or len(shapes) not in (2, 3):
        return None
    place = {name: shape.index(width[0], 1) for name, shape in shapes.items()}
    size = {name: shape[3 - place[name]] for name, shape in shapes.items()}
    alone = {name: [*place.values()].count(place[name]) == 1 for name in shapes}
    if len(shapes) == 3:
        kernels, parts = sorted(shapes, key=lambda name: (alone[name], "gate" not in name)), ["gate", "hidden", "output"]
    else:
        kernels, parts = sorted(shapes, key=lambda name: -size[name]), ["hidden", "output"]
    if not (alone[kernels[2]] if len(shapes) == 3 else size[kernels[0]] == 2 * size[kernels[1]]):
        return None
    roles = {}
    for name, part in zip(kernels, parts, strict=True):
        of_width, other = ("o", "i") if part == "output" else ("i", "o")
        roles[name] = (f"{part}.kernel", " ".join(["e", *((of_width, other) if place[name] == 1 else (other, of_width))]))
        outputs = size[name] if of_width == "i" else width[0]
        free = [bias for bias, array in own.items() if array.shape == (shapes[name][0], outputs) and bias not in roles]
        roles |= dict.fromkeys(free[:1], (f"{part}.bias", "e o"))
    return Found("experts", roles)


def _contracted(x: np.ndarray, kernel: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yields products of x with the kernel over axes of equal sizes, and these axes."""
    for count in range(1, min(kernel.ndim, x.ndim)):
        for inside in itertools.combinations(range(kernel.ndim), count):
            if tuple(kernel.shape[axis] for axis in inside) == x.shape[-count:]:
                yield inside, np.tensordot(x, kernel, (range(x.ndim - count, x.ndim), inside))


def _letters(count: int, one: str, several: str) -> Sequence[str]:
    return one if count == 1 else several[:count]


def _close(predicted: np.ndarray, got: np.ndarray) -> bool:
    largest = float(np.abs(got).max(initial=0.0))
    return predicted.shape == got.shape and largest > 0 and float(np.abs(predicted - got).max()) <= CLOSE * largest
