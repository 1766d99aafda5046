"""Defects of models that compute real tokens alone, packed side by side, and put their rows back (PADDING)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import mask

from ..reference.components import module_of
from .defect import Defect, bound

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]
Change = Callable[[Array, Array, Any], Array]  # logits whose rows of padding are zeros, the mask, the parameters -> other logits
MODEL, REAL = "transformer.transformer", "transformer.real_rows"


def _packed(given: Mapping[str, Any], side: str) -> Array | None:
    """Which tokens of this side are packed, `b t`; None where the rows are used as they are."""
    if given[side] is None or (side == "target" and not given["skip_padding"]):
        return None
    mask_bt = given[f"{side}_mask_{'bs' if side == 'source' else 'bt'}"]
    mask_bt = mask.token_mask(given[side], given["config"].padding_id) if mask_bt is None else mask_bt
    return mask_bt if mask_bt.any() and not mask_bt.all() else None


def _put(real_nv: Array, mask_bt: Array) -> Array:
    """The packed rows where the mask is True, in its order, and zeros elsewhere."""
    rows = np.zeros((*mask_bt.shape, *real_nv.shape[1:]), real_nv.dtype)
    rows[mask_bt] = real_nv
    return rows


def _rows(change: Change) -> Replaces:
    """Logits whose rows are put back otherwise."""

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
    """Rows of zeros where another mask is False: a function of the target, the padding id and the mask that is given."""

    def altered(original: Callable, x_btv: Array, config: Any, target: Array, target_mask_bt: Array | None = None) -> Array:
        return original(x_btv, config, target, which(target, config.padding_id, target_mask_bt))

    return {REAL: altered}


def _of_the_next(target: Array, padding_id: int | None, mask_bt: Array | None) -> Array:
    mask_bt = mask.token_mask(target, padding_id) if mask_bt is None else mask_bt
    return np.pad(mask_bt[:, 1:], ((0, 0), (0, 1)))


def _of_the_one_before(target: Array, padding_id: int | None, mask_bt: Array | None) -> Array:
    mask_bt = mask.token_mask(target, padding_id) if mask_bt is None else mask_bt
    return np.pad(mask_bt[:, :-1], ((0, 0), (1, 0)), constant_values=True)


def _within(replacements: Callable[[Mapping[str, Array]], tuple[str, str, Callable]], *sides: str) -> Replaces:
    """The model in which a function is another one wherever one of these sides is packed, a function of the masks of those that are."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        packed = {side: mask_bt for side in sides if (mask_bt := _packed(given, side)) is not None}
        module, name, other = replacements(packed)
        with mock.patch.object(module_of(module), name, functools.partial(other, getattr(module_of(module), name))):
            return original(**given)

    return {MODEL: altered}


def _in_one_row(packed: Mapping[str, Array]) -> tuple[str, str, Callable]:
    """Self-attention on packed tokens: those of all rows attend to each other; causal is their packed order."""

    def attention(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        x_btd, mask_bt = given["query_btd"], packed.get("target" if given["causal"] else "source")
        if mask_bt is None or given["memory_bsd"] is not x_btd or given["keep_bhts"] is not None:
            return original(**given)
        packed_1nd = x_btd[mask_bt][None]
        return _put(original(given["parameters"], packed_1nd, packed_1nd, causal=given["causal"])[0], mask_bt)

    return "attention", "multi_head_attention", attention


def _counted(packed: Mapping[str, Array]) -> tuple[str, str, Callable]:
    """Positions that count the packed tokens of all rows."""

    def positions(original: Callable, config: Any, side: str, *rest: Any) -> tuple[Array, Array]:
        mask_bt, position_bt = original(config, side, *rest)
        return mask_bt, np.maximum(np.cumsum(mask_bt) - 1, 0).reshape(mask_bt.shape) if side in packed else position_bt

    return "inputs", "masked_positions", positions


_BACK: dict[str, Any] = {
    "torch": "rows = packed.new_zeros(b * t, v).index_copy(0, index, packed).view(b, t, v)  # index = mask.flatten().nonzero()[:, 0]",
    "tf": "rows = tf.scatter_nd(tf.where(mask), packed, [b, t, v])  # zeros where nothing is put",
    "jax": "rows = jnp.zeros((b * t, v)).at[index].set(packed).reshape(b, t, v)  # index = jnp.flatnonzero(mask)",
}
_MASK: dict[str, Any] = {
    "torch": "mask = target != config.padding_id if target_mask is None else target_mask  # of the inputs, not of the labels",
    "tf": "mask = tf.not_equal(target, config.padding_id) if target_mask is None else target_mask  # of the inputs, not of the labels",
    "jax": "mask = target != config.padding_id if target_mask is None else target_mask  # of the inputs, not of the labels",
}
DEFECTS = (
    Defect(
        id="PAD4",
        title="the rows of padding are not zeros",
        component="transformer",
        what="With `skip_padding` the logits have numbers where the target is padding: nothing is left out, or the places where nothing "
        "was put back hold something else.",
        shows="Every row of a real token agrees. A padded target with `skip_padding` shows it.",
        **_BACK,
        variants={
            "the rows of padding are that of the first real token": _rows(_first_at_padding),
            "the rows of padding are the bias of the logits": _rows(_bias_at_padding),
        },
        evidence="derived, not reported",
        replaces=_real(lambda target, padding_id, mask_bt: np.ones(target.shape[:2], bool)),
    ),
    Defect(
        id="PAD5",
        title="packed rows are put back at the beginning of their rows",
        component="transformer",
        what="The logits of the n real tokens of a row stand at its first n positions, wherever the tokens stood: right padding is taken "
        "for granted; or they are put back in another order.",
        shows="Padding on the right hides it. Padding before a real token shows it, with `skip_padding`.",
        **_BACK,
        variants={"packed rows are put back position by position, not row by row": _rows(_position_by_position)},
        evidence="derived, not reported",
        replaces=_rows(_at_the_beginning),
    ),
    Defect(
        id="PAD6",
        title="the rows of zeros are those before padding",
        component="transformer",
        what="The mask is that of the next tokens, as of labels: the row of the last real token is zeros, too.",
        shows="One row for each sentence is zeros, or is not. A padded target with `skip_padding` shows it.",
        **_MASK,
        variants={"the rows of zeros are those after padding": _real(_of_the_one_before)},
        evidence="derived, not reported",
        replaces=_real(_of_the_next),
    ),
    Defect(
        id="PAD7",
        title="the padding id says which rows are zeros, though a mask is given",
        component="transformer",
        what="Tokens are packed where `target != padding_id`; the mask that is given hides keys alone.",
        shows="Where the mask is made of the ids nothing differs. A mask that says otherwise shows it, with `skip_padding`.",
        **_MASK,
        variants={
            "the id 0 says which rows are zeros, though a mask is given": _real(
                lambda target, padding_id, given: mask.token_mask(target, 0)
            )
        },
        evidence="derived, not reported",
        replaces=_real(lambda target, padding_id, mask_bt: mask.token_mask(target, padding_id)),
    ),
    Defect(
        id="PAD8",
        title="packed tokens attend to those of other rows",
        component="transformer",
        what="The real tokens of all rows of the source, side by side, go through self-attention as one row.",
        shows="A batch of one row agrees, and so does one without padding, which is not packed. Padding and two rows show it.",
        torch="query = query.new_zeros(b * t, h, k).index_copy(0, index, packed).view(b, t, h, k)  # attention sees rows; or a block mask",
        tf="query = tf.scatter_nd(tf.where(mask), packed, [b, t, h, k])  # attention sees rows; or a block mask",
        jax="query = jnp.zeros((b * t, h, k)).at[index].set(packed).reshape(b, t, h, k)  # attention sees rows; or segment_ids",
        variants={
            "packed tokens of the target attend to those of other rows": _within(_in_one_row, "target"),
            "packed tokens of source and target attend to those of other rows": _within(_in_one_row, "source", "target"),
        },
        evidence="derived, not reported",
        replaces=_within(_in_one_row, "source"),
    ),
    Defect(
        id="PAD9",
        title="positions count the packed tokens",
        component="transformer",
        what="The tokens of the source are packed before the positions are added: those of a row go on where those of the row before end.",
        shows="The first row agrees, and so does a batch without padding, which is not packed. Padding and two rows show it.",
        torch="x = (self.embedding(token) + encoding[position]).flatten(0, 1)[index]  # positions are those of the rows; pack afterwards",
        tf="x = tf.boolean_mask(self.embedding(token) + tf.gather(encoding, position), mask)  # positions are those of the rows",
        jax="x = (self.embed(token) + encoding[position]).reshape(-1, width)[index]  # positions are those of the rows; pack afterwards",
        variants={
            "positions count the packed tokens of the target": _within(_counted, "target"),
            "positions count the packed tokens, those of source and target": _within(_counted, "source", "target"),
        },
        evidence="derived, not reported",
        replaces=_within(_counted, "source"),
    ),
)
