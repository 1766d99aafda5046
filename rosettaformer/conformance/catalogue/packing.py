"""Defects of models that compute only real tokens, packed side by side, and put their rows back (PADDING)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import mask

from ..reference.patching import patched
from .alteration import Altered, Array, Replaces, Variants, bound

Change = Callable[[Array, Array, Any], Array]  # logits whose rows of padding are zeros, the mask, the parameters -> other logits
MODEL, REAL = "transformer.transformer", "transformer.real_rows"


def _packed(given: Mapping[str, Any], side: str) -> Array | None:
    """The tokens of this side that are packed, `b t`; None if its rows are used as they are."""
    if given[side] is None or (side == "target" and not given["skip_padding"]):
        return None
    mask_bt = given[f"{side}_mask_{'bs' if side == 'source' else 'bt'}"]
    mask_bt = mask.token_mask(given[side], given["config"].padding_id) if mask_bt is None else mask_bt
    return mask_bt if mask_bt.any() and not mask_bt.all() else None


def _put(real_nv: Array, mask_bt: Array) -> Array:
    """Puts the packed rows back where the mask is True, in order, and zeros elsewhere."""
    rows = np.zeros((*mask_bt.shape, *real_nv.shape[1:]), real_nv.dtype)
    rows[mask_bt] = real_nv
    return rows


def _rows(change: Change) -> Replaces:
    """Puts the rows of the logits back otherwise."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        logits_btv, mask_bt = original(**given), _packed(given, "target")
        return logits_btv if mask_bt is None else change(logits_btv, mask_bt, given["parameters"])

    return {MODEL: altered}


def _first_at_padding(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return np.where(mask_bt[..., None], logits_btv, logits_btv[mask_bt][0])


def _bias_at_padding(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    bias_v = parameters.get("logits", {}).get("bias", logits_btv.dtype.type(0))
    return np.where(mask_bt[..., None], logits_btv, bias_v)


def _at_the_beginning(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return _put(logits_btv[mask_bt], np.arange(mask_bt.shape[1]) < mask_bt.sum(axis=1)[:, None])


def _position_by_position(logits_btv: Array, mask_bt: Array, parameters: Any) -> Array:
    return _put(logits_btv[mask_bt], mask_bt.T).swapaxes(0, 1)


def _real(which: Callable[[Array, Any, Array | None], Array]) -> Replaces:
    """Sets rows to zero by another mask, a function of the target, the padding id and the given mask."""

    def altered(original: Callable, x_btv: Array, config: Any, target: Array, target_mask_bt: Array | None = None) -> Array:
        return original(x_btv, config, target, which(target, config.padding_id, target_mask_bt))

    return {REAL: altered}


def _other_real(change: Callable[[Array], Array]) -> Replaces:
    """Sets rows to zero by a function of the right mask."""
    return _real(lambda target, padding_id, mask_bt: change(mask.token_mask(target, padding_id) if mask_bt is None else mask_bt))


def _within(replacement: Callable[[Mapping[str, Array]], Replaces], *sides: str) -> Replaces:
    """Runs the model with other functions in it, which depend on the masks of the sides that are packed."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        packed = {side: mask_bt for side in sides if (mask_bt := _packed(given, side)) is not None}
        with patched(replacement(packed)):
            return original(**given)

    return {MODEL: altered}


def _in_one_row(packed: Mapping[str, Array]) -> Replaces:
    """Lets packed tokens of all rows attend to each other; causality follows the packed order."""

    def attention(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        x_btd, mask_bt = given["query_btd"], packed.get("target" if given["causal"] else "source")
        if mask_bt is None or given["memory_bsd"] is not x_btd or given["keep_bhts"] is not None:
            return original(**given)
        packed_1nd = x_btd[mask_bt][None]
        return _put(original(given["parameters"], packed_1nd, packed_1nd, causal=given["causal"])[0], mask_bt)

    return {"attention.multi_head_attention": attention}


def _counted(packed: Mapping[str, Array]) -> Replaces:
    """Numbers the packed tokens of all rows."""

    def positions(original: Callable, config: Any, side: str, *rest: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = original(config, side, *rest)
        return mask_bt, np.maximum(np.cumsum(mask_bt) - 1, 0).reshape(mask_bt.shape) if side in packed else position_bt

    return {"inputs.masked_positions": positions}


ALTERED: Altered = {
    "PAD4": _real(lambda target, padding_id, mask_bt: np.ones(target.shape[:2], bool)),
    "PAD5": _rows(_at_the_beginning),
    "PAD6": _other_real(lambda mask_bt: np.pad(mask_bt[:, 1:], ((0, 0), (0, 1)))),
    "PAD7": _real(lambda target, padding_id, mask_bt: mask.token_mask(target, padding_id)),
    "PAD8": _within(_in_one_row, "source"),
    "PAD9": _within(_counted, "source"),
}
VARIANTS: Variants = {
    "PAD4": {
        "the rows of padding are that of the first real token": _rows(_first_at_padding),
        "the rows of padding are the bias of the logits": _rows(_bias_at_padding),
    },
    "PAD5": {"packed rows are put back position by position, not row by row": _rows(_position_by_position)},
    "PAD6": {
        "the rows of zeros are those after padding": _other_real(
            lambda mask_bt: np.pad(mask_bt[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        )
    },
    "PAD7": {
        "the id 0 says which rows are zeros, though a mask is given": _real(lambda target, padding_id, given: mask.token_mask(target, 0))
    },
    "PAD8": {
        "packed tokens of the target attend to those of other rows": _within(_in_one_row, "target"),
        "packed tokens of source and target attend to those of other rows": _within(_in_one_row, "source", "target"),
    },
    "PAD9": {
        "positions count the packed tokens of the target": _within(_counted, "target"),
        "positions count the packed tokens, those of source and target": _within(_counted, "source", "target"),
    },
}
