"""Defects of sequences that are shifted, turned around or exchanged."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import mask

from .defect import Defect, on_call, on_result

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
First = Callable[[Array, Any], Array]  # of a target and the config: the token `b 1` that comes in at its end
DECODE = "transformer.decode"


def _id(number: Callable[[Any], int | None]) -> First:
    """This id, a function of the config, or its soft row; without such an id the first token."""

    def token(target: Array, config: Any) -> Array:
        id_ = number(config)
        if id_ is None:
            return target[:, :1]
        return np.full_like(target[:, :1], id_) if target.ndim == 2 else np.broadcast_to(np.eye(target.shape[2])[id_], target[:, :1].shape)

    return token


def _right(first: First, old_mask: bool = False) -> Replaces:
    """The decoder whose input is this token and the target without its last one; old_mask: under the mask of the target as it was."""
    return _shifted(lambda target, config: np.concatenate([first(target, config), target[:, :-1]], axis=1), old_mask)


def _left(last: First, old_mask: bool = False) -> Replaces:
    """The decoder whose input is the target without its first token, and this one."""
    return _shifted(lambda target, config: np.concatenate([target[:, 1:], last(target, config)], axis=1), old_mask)


def _shifted(change: First, old_mask: bool) -> Replaces:
    def shift(target: Array, config: Any, target_mask_bt: Any, **others: Any) -> dict[str, Any]:
        own_bt = mask.token_mask(target, config.padding_id) if old_mask and target_mask_bt is None else target_mask_bt
        return {"target": change(target, config).astype(target.dtype), "target_mask_bt": own_bt}

    return {DECODE: on_call(shift)}


def _first(target: Array, config: Any) -> Array:
    return target[:, :1]


def _last(target: Array, config: Any) -> Array:
    return target[:, -1:]


_FILLS: dict[str, First] = {
    "a 0": _id(lambda config: 0),
    "a 1": _id(lambda config: 1),
    "the padding id": _id(lambda config: config.padding_id),
    "the first token again": _first,
    "the last token": _last,
}


def _reversed(*names: str) -> Replaces:
    """The model whose arguments of these names are turned around along their positions."""
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


_INPUT: dict[str, Any] = {
    "torch": "logits = model(source, target[:, :-1]); loss = criterion(logits, target[:, 1:])  # shifted once, by who calls the model",
    "tf": "logits = model((source, target[:, :-1])); loss = loss_fn(target[:, 1:], logits)  # shifted once, by who calls the model",
    "jax": "logits = model(source, target[:, :-1]); loss = cross_entropy(logits, target[:, 1:])  # shifted once, by who calls the model",
}
_OF = "the decoder's input is shifted right once more"
DEFECTS = (
    Defect(
        id="SEQ1",
        title=f"{_OF}: a 0 comes first",
        component="transformer",
        what="`decode([0, target[:-1]])` of a target that begins with its start token: the model shifts what its caller has shifted.",
        shows="Each logit is of the token one place earlier, and the last token is never read. Any target shows it.",
        **_INPUT,
        variants={f"{_OF}: {words} comes first": _right(fill) for words, fill in _FILLS.items() if words != "a 0"}
        | {f"{_OF}: {words} comes first, and the mask is not shifted": _right(fill, True) for words, fill in _FILLS.items()}
        | {f"the decoder's input is shifted left: {words} comes last": _left(fill) for words, fill in _FILLS.items()}
        | {
            f"the decoder's input is shifted left: {words} comes last, and the mask is not shifted": _left(fill, True)
            for words, fill in _FILLS.items()
        },
        evidence="Flax' example wmt: shift_right within the decoder",
        replaces=_right(_FILLS["a 0"]),
    ),
    Defect(
        id="SEQ2",
        title="the source is reversed",
        component="transformer",
        what="`encode(source[::-1])`, as for recurrent networks; or the target is, or source and target are exchanged.",
        shows="The positions of the tokens are turned around. Two tokens show it.",
        **_INPUT,
        variants={
            "the target is reversed": _reversed("target", "target_mask_bt"),
            "source and target are exchanged": {"transformer.transformer": on_call(_exchanged)},
        },
        evidence="derived, not reported",
        replaces=_reversed("source", "source_mask_bs"),
    ),
    Defect(
        id="SEQ3",
        title="the logits are shifted by one position",
        component="transformer",
        what="Row t scores the token at t, not the one after it: zeros, or the last row, come first, and the last one is lost.",
        shows="Every row is the one of its neighbour. Two positions show it.",
        **_INPUT,
        variants={
            "the logits are shifted by one position, in a circle": {DECODE: on_result(lambda logits_btv: np.roll(logits_btv, 1, axis=1))},
            "the logits are shifted the other way": {DECODE: on_result(_earlier)},
            "the logits are shifted the other way, in a circle": {DECODE: on_result(lambda logits_btv: np.roll(logits_btv, -1, axis=1))},
            "the logits are reversed along the positions": {DECODE: on_result(lambda logits_btv: logits_btv[:, ::-1])},
        },
        evidence="derived, not reported",
        replaces={DECODE: on_result(_later)},
    ),
)
