"""Symptoms about axes: elements moved but not changed."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .answered import Answered, Prediction, of_reference

WORDS = {"b": "batch", "t": "positions", "s": "keys", "h": "heads", "d": "features", "e": "features", "k": "features", "f": "features",
         "r": "features", "v": "vocabulary", "c": "classes", "l": "layers", "x": "experts"}  # fmt: skip
OUTPUTS = {
    "embedding": "btd", "segment_embedding": "bsd", "token_positions": "bt", "position_embedding": "btd", "positional_encoding": "btd",
    "token_mask": "bt", "padding_mask": "bhts", "causal_mask": "bhts", "window_mask": "bhts", "combine_masks": "bhts", "softmax": "bhts",
    "scaled_dot_product_attention": "bthe", "multi_head_attention": "btd", "activation": "btf", "feed_forward": "btd",
    "router": "btx", "mixture_of_experts": "btd",
    "layer_norm": "btd", "rms_norm": "btd", "rotary_embedding": "bthk", "dropout": "btd", "encoder_layer": "btd", "decoder_layer": "btd",
    "encoder": "btd", "decoder": "btd", "logits": "btv", "pooler": "br", "classifier": "bc", "masked_language_head": "btv",
    "transformer": "btv", "pool": "br", "classify": "bc", "masked_language_logits": "btv",
}  # fmt: skip
Function = Callable[[np.ndarray], np.ndarray]
LISTED = 8  # longest axis whose order is listed


def letters(answered: Answered) -> str:
    """The letters of the output's axes; empty if unknown. The names of states end in them."""
    if answered.name == "weights":
        return "bhts"
    return answered.name.rpartition("_")[2] if "." in answered.name else OUTPUTS.get(answered.case.component, "")


def words(axes: str, axis: int, ndim: int) -> str:
    """The name of an axis."""
    return WORDS[axes[axis]] if len(axes) == ndim and axes[axis] in WORDS else f"axis {axis}"


def orders(answered: Answered) -> Iterator[Prediction]:
    """Proposes moved elements: axes exchanged, reversed, shifted or merged, features reordered."""
    given, target, axes = answered.reference, answered.got, letters(answered)
    yield from _transposed(given, axes, target.shape)
    if target.shape != given.shape:
        yield from _reduced(given, axes)
        return
    for axis in (axis for axis in range(given.ndim) if given.shape[axis] > 1):
        name = words(axes, axis, given.ndim)
        yield _moved(f"{{}} with its {name} in reverse order", partial(np.flip, axis=axis), 84)
        for n in (1, -1):
            yield _moved(f"{{}} rolled by {n} along its {name}", partial(np.roll, shift=n, axis=axis), 83)
        yield from (_moved(f"{{}} shifted by {n} along its {name}, repeating the last one", _shift(axis, n), 83) for n in (1, -1))
        yield _moved(f"{{}} with index 0 of its {name} everywhere", _spread(axis), 83)
        yield _moved(f"{{}} sorted along its {name}", partial(np.sort, axis=axis), 78)
        if order := _order(answered, target, axis):
            yield _moved(f"{{}} with its {name} in the order {order}", _take(axis, order), 80)
    name = words(axes, given.ndim - 1, given.ndim)
    yield from (_moved(f"{{}} with {text.format(name)}", function, 82) for text, function in FEATURES.items())


def _reduced(given: np.ndarray, axes: str) -> Iterator[Prediction]:
    """Proposes a removed axis: its first or last index, its mean, or its sum."""
    for axis in range(given.ndim):
        name = words(axes, axis, given.ndim)
        first, last = (partial(np.take, indices=index, axis=axis) for index in (0, -1))
        yield _moved(f"only the first of the {name} of {{}}", first, 86)
        yield _moved(f"only the last of the {name} of {{}}", last, 86)
        yield _moved(f"the mean over the {name} of {{}}", partial(np.mean, axis=axis), 86)
        yield _moved(f"the sum over the {name} of {{}}", partial(np.sum, axis=axis), 86)


def _moved(text: str, function: Callable[..., Any], rank: int) -> Prediction:
    return of_reference("axes", text, rank, function)


def _transposed(given: np.ndarray, axes: str, shape: tuple[int, ...]) -> Iterator[Prediction]:
    """Proposes permuted axes, with the new shape or reshaped to the old one."""
    names = [words(axes, axis, given.ndim) for axis in range(given.ndim)]
    for order in itertools.permutations(range(given.ndim)):
        if order == tuple(range(given.ndim)):
            continue
        moved = [axis for axis, other in enumerate(order) if axis != other and given.shape[axis] > 1]
        if len(moved) < 2:
            continue
        listed = ", ".join(names[axis] for axis in order)
        exchanged = f"with {names[moved[0]]} and {names[moved[1]]} exchanged" if len(moved) == 2 else f"with its axes in the order {listed}"
        if tuple(given.shape[axis] for axis in order) == shape:
            yield _moved(f"{{}} {exchanged}", partial(np.transpose, axes=order), 86)
        if given.size == np.prod(shape):
            text = f"{{}} stored in the order {listed} but read as {', '.join(names)}: a reshape without a transpose"
            same = shape == given.shape
            yield _moved(text if same else f"{{}} {exchanged} and reshaped", _reshape(order, None if same else shape), 85)


def _reshape(order: tuple[int, ...], shape: tuple[int, ...] | None) -> Function:
    return lambda value: value.transpose(order).reshape(shape or value.shape)


def _shift(axis: int, count: int) -> Function:
    """Shifts along an axis, repeating the last index."""
    return lambda value: np.take(value, np.clip(np.arange(value.shape[axis]) - count, 0, value.shape[axis] - 1), axis)


def _spread(axis: int) -> Function:
    return lambda value: np.repeat(np.take(value, [0], axis), value.shape[axis], axis)


def _take(axis: int, order: list[int]) -> Function:
    return lambda value: np.take(value, order, axis) if value.shape[axis] == len(order) else value


def _order(answered: Answered, target: np.ndarray, axis: int) -> list[int] | None:
    """The permutation of the reference's slices along the axis; None if there is none."""
    count = target.shape[axis]
    if not 2 < count <= LISTED or target.size // count < 3:
        return None
    wanted, given = (np.moveaxis(array, axis, 0).reshape(count, -1) for array in (target, answered.reference))
    same = answered.close(wanted[:, None], given[None], answered.allowed(given)).all(-1)
    if not (same.sum(0) == 1).all() or not (same.sum(1) == 1).all():
        return None
    return [int(index) for index in same.argmax(1)]


def _interleaved(value: np.ndarray) -> np.ndarray:
    half = (value.shape[-1] + 1) // 2
    result = np.empty_like(value)
    result[..., 0::2], result[..., 1::2] = value[..., :half], value[..., half:]
    return result


def _pairs(value: np.ndarray) -> np.ndarray:
    even = value.shape[-1] // 2 * 2
    swapped = value[..., :even].reshape(*value.shape[:-1], -1, 2)[..., ::-1].reshape(*value.shape[:-1], even)
    return np.concatenate([swapped, value[..., even:]], -1)


FEATURES: dict[str, Function] = {
    "the two halves of its {} exchanged": lambda value: np.roll(value, value.shape[-1] // 2, -1),
    "the even ones of its {} before the odd ones": lambda value: np.concatenate([value[..., 0::2], value[..., 1::2]], -1),
    "the two halves of its {} interleaved": _interleaved,
    "every two neighbors of its {} exchanged": _pairs,
}
