"""Known bugs of how tokens are numbered."""

from collections.abc import Callable

import numpy as np

from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_result
from .positional_encoding import ENCODING


def _numbered(number: Callable[[Array], Array]) -> Replaces:
    """Numbers tokens by a function of the mask `b t`, True for real tokens."""
    return {"positional_encoding.token_positions": lambda original, mask_bt, start="": number(mask_bt)}


def _count(mask_bt: Array) -> Array:
    return np.cumsum(mask_bt, axis=1)


def _first(mask_bt: Array) -> Array:
    """Returns the index `b 1` of each row's first real token, or the length if there is none."""
    return np.where(mask_bt.any(axis=1), mask_bt.argmax(axis=1), mask_bt.shape[1])[:, None]


def _from_first(first_b1: Array, mask_bt: Array) -> Array:
    return np.maximum(np.arange(mask_bt.shape[1]) - first_b1, 0)


def _renumbered(number: Callable[[Array], Array]) -> Replaces:
    """Changes the positions `b t`."""
    return {"positional_encoding.token_positions": on_result(number)}


def _every(position_b1: Array, like: Array) -> Array:
    return np.broadcast_to(position_b1, like.shape)


def _divided(divisor: Callable[[int], float]) -> Replaces:
    """Divides sinusoidal positions by a function of the length t."""
    return {ENCODING: on_arguments(position_bt=lambda position_bt: position_bt / divisor(position_bt.shape[1]))}


ALTERED: Altered = {
    "PE5": {ENCODING: on_arguments(position_bt=lambda position_bt: np.indices(position_bt.shape)[0])},
    "PE9": {ENCODING: on_arguments(position_bt=lambda position_bt: position_bt + 2)},
    "PE10": {ENCODING: on_arguments(position_bt=np.arange(50)[None])},
    "PE11": {"positional_encoding.token_positions": on_arguments(mask_bt=np.ones_like)},
    "PE16": {"positional_encoding.token_positions": on_arguments(start="first_token")},
    "PE27": _renumbered(lambda position_bt: _every(position_bt[:1], position_bt)),
    "PE22": _numbered(lambda mask_bt: np.maximum(_count(mask_bt) - 1, 0)),
    "PE23": _renumbered(lambda position_bt: position_bt[:, ::-1]),
    "PE24": _divided(lambda length: max(length, 1)),
}
VARIANTS: Variants = {
    "PE27": {
        "every row uses the largest left padding in the batch": _numbered(
            lambda mask_bt: _from_first(np.broadcast_to(_first(mask_bt).max(axis=0, initial=0), (len(mask_bt), 1)), mask_bt)
        ),
        "every row uses the largest left padding of the rows so far": _numbered(
            lambda mask_bt: _from_first(np.maximum.accumulate(_first(mask_bt), axis=0), mask_bt)
        ),
        "left padding is summed over the rows so far": _numbered(lambda mask_bt: _from_first(np.cumsum(_first(mask_bt), axis=0), mask_bt)),
    },
    "PE22": {
        "positions are the running count of real tokens, starting at 0, and 1 at padding": _numbered(
            lambda mask_bt: np.where(mask_bt, _count(mask_bt) - 1, 1)
        ),
        "positions are the running count of real tokens, starting at 0, and 0 at padding": _numbered(
            lambda mask_bt: np.where(mask_bt, _count(mask_bt) - 1, 0)
        ),
        "positions are the running count of real tokens, starting at 1": _numbered(_count),
        "positions are shifted by the number of all padding tokens, not only those on the left": _numbered(
            lambda mask_bt: np.maximum(np.arange(mask_bt.shape[1]) - (~mask_bt).sum(axis=1, keepdims=True), 0)
        ),
        "positions are the running count of real tokens, starting at 1, and 0 at padding": _numbered(
            lambda mask_bt: _count(mask_bt) * mask_bt
        ),
    },
    "PE23": {
        "positions are counted from the last real token": _numbered(
            lambda mask_bt: np.maximum(mask_bt.sum(axis=1, keepdims=True) - np.maximum(_count(mask_bt), 1), 0)
        ),
        "every token has the last token's position": _renumbered(
            lambda position_bt: _every(position_bt.max(axis=1, keepdims=True, initial=0), position_bt)
        ),
        "every token has position 0": _renumbered(np.zeros_like),
    },
    "PE24": {
        "positions are divided by the length minus 1": _divided(lambda length: max(length - 1, 1)),
        "positions are divided by 1000": _divided(lambda length: 1000.0),
        "positions are divided by 10000": _divided(lambda length: 10000.0),
    },
}
