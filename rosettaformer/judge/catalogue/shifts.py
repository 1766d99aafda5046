"""Known bugs in which sequences are shifted, reversed or swapped."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import mask

from .alteration import Altered, Array, Replaces, Variants, on_call, on_result

First = Callable[[Array, Any], Array]  # (target, config) -> the token `b 1` that fills the gap
DECODE = "transformer.decode"


def _id(number: Callable[[Any], int | None]) -> First:
    """Fills with an id (a function of the config) or its soft row; if None, the first token."""

    def token(target: Array, config: Any) -> Array:
        id_ = number(config)
        if id_ is None:
            return target[:, :1]
        return np.full_like(target[:, :1], id_) if target.ndim == 2 else np.broadcast_to(np.eye(target.shape[2])[id_], target[:, :1].shape)

    return token


def _right(first: First, old_mask: bool = False) -> Replaces:
    """Shifts the target right, starting with this token. old_mask: keeps the mask unshifted."""
    return _shifted(lambda target, config: np.concatenate([first(target, config), target[:, :-1]], axis=1), old_mask)


def _left(last: First, old_mask: bool = False) -> Replaces:
    """Shifts the target left, ending with this token. old_mask: keeps the mask unshifted."""
    return _shifted(lambda target, config: np.concatenate([target[:, 1:], last(target, config)], axis=1), old_mask)


def _shifted(change: First, old_mask: bool) -> Replaces:
    def shift(target: Array, config: Any, target_mask_bt: Any, **others: Any) -> dict[str, Any]:
        own_bt = mask.token_mask(target, config.padding_id) if old_mask and target_mask_bt is None else target_mask_bt
        return {"target": change(target, config).astype(target.dtype), "target_mask_bt": own_bt}

    return {DECODE: on_call(shift)}


_FILLS: dict[str, First] = {
    "a 0": _id(lambda config: 0),
    "a 1": _id(lambda config: 1),
    "the padding id": _id(lambda config: config.padding_id),
    "a copy of the first token": lambda target, config: target[:, :1],
    "a copy of the last token": lambda target, config: target[:, -1:],
}


def _reversed(*names: str) -> Replaces:
    """Reverses these arguments of the model along the positions."""
    return {
        "transformer.transformer": on_call(
            lambda **given: {name: given[name][:, ::-1] for name in names if given[name] is not None},
        )
    }


def _exchanged(config: Any, source: Any, target: Array, source_mask_bs: Any, target_mask_bt: Any, **others: Any) -> dict[str, Any]:
    if source is None or source.ndim != target.ndim or source.ndim > 2:
        return {}
    if source.max(initial=0) >= config.target_vocabulary or target.max(initial=0) >= config.source_vocabulary:
        return {}
    return {"source": target, "target": source, "source_mask_bs": target_mask_bt, "target_mask_bt": source_mask_bs}


def _later(logits_btv: Array) -> Array:
    return np.concatenate([np.zeros_like(logits_btv[:, :1]), logits_btv[:, :-1]], axis=1)


def _earlier(logits_btv: Array) -> Array:
    return np.concatenate([logits_btv[:, 1:], np.zeros_like(logits_btv[:, :1])], axis=1)


_OF = "the decoder's input is shifted right twice"
ALTERED: Altered = {
    "SEQ1": _right(_FILLS["a 0"]),
    "SEQ2": _reversed("source", "source_mask_bs"),
    "SEQ3": {DECODE: on_result(_later)},
}
VARIANTS: Variants = {
    "SEQ1": {f"{_OF} and starts with {words}": _right(fill) for words, fill in _FILLS.items() if words != "a 0"}
    | {f"{_OF} and starts with {words}, with an unshifted mask": _right(fill, True) for words, fill in _FILLS.items()}
    | {f"the decoder's input is shifted left and ends with {words}": _left(fill) for words, fill in _FILLS.items()}
    | {
        f"the decoder's input is shifted left and ends with {words}, with an unshifted mask": _left(fill, True)
        for words, fill in _FILLS.items()
    },
    "SEQ2": {
        "the target is reversed": _reversed("target", "target_mask_bt"),
        "source and target are swapped": {"transformer.transformer": on_call(_exchanged)},
    },
    "SEQ3": {
        "the logits are rotated by one position": {DECODE: on_result(lambda logits_btv: np.roll(logits_btv, 1, axis=1))},
        "the logits are shifted by one position to the left": {DECODE: on_result(_earlier)},
        "the logits are rotated by one position to the left": {DECODE: on_result(lambda logits_btv: np.roll(logits_btv, -1, axis=1))},
        "the logits are reversed along the positions": {DECODE: on_result(lambda logits_btv: logits_btv[:, ::-1])},
    },
}
