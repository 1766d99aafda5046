"""Only the real tokens of a batch: laid side by side in one row, so that no product is computed for padding.

`x_btd` becomes `x_1nd`; attention alone sees rows. XLA compiles a program for every n, so n is one of a few.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from ..framework import keras

if TYPE_CHECKING:
    from ..transformer import Transformer

__all__ = ["PACK_FROM", "Packing", "Packings", "kept", "of_forward", "of_loss", "pack", "real", "rows", "unpack"]

PACK_FROM = 1 << 14  # positions that are saved, times the model's width: fewer cost more than they save
STEPS = 32  # numbers of packed tokens that a shape of rows can have, each a graph


class Packing(NamedTuple):
    """Where the packed tokens of some rows stand. What fills n up has the place 0 in the rows, and no position has its place."""

    index_n: Any  # the place of each packed token in the flattened rows
    place_bt: Any  # the place of every position among the packed tokens; 0 where it is not packed
    mask_bt: Any  # True = packed


class Packings(NamedTuple):
    """The packing of each side; None: its rows are used as they are."""

    source: Packing | None = None
    target: Packing | None = None


def of_forward(
    model: "Transformer",
    source: Any,
    target: Any,
    source_mask_bs: Any = None,
    target_mask_bt: Any = None,
    skip_padding: bool = False,
    steps: int = STEPS,
) -> Packings:
    """The packings of a forward pass: of the source, and with skip_padding of the target; none of ids that have no values."""
    target_packing = _packing(model, _real(model, target, target_mask_bt), steps) if skip_padding else None
    return Packings(_packing(model, _real(model, source, source_mask_bs), steps), target_packing)


def of_loss(model: "Transformer", source: Any, target: Any) -> Packings:
    """The packings of `training_loss`. target: the whole of it.

    Of the decoder's input those tokens are packed that are real, or whose label counts, and that no longer than to the row's last label
    that counts: what comes after it changes no loss.
    """
    source_packing, real_bt = _packing(model, _real(model, source)), _real(model, target)
    if real_bt is None or real_bt.ndim != 2 or real_bt.shape[1] < 2:
        return Packings(source_packing)
    counts_bt = real_bt[:, 1:]
    followed_bt = np.logical_or.accumulate(counts_bt[:, ::-1], axis=1)[:, ::-1]
    return Packings(source_packing, _packing(model, (counts_bt | real_bt[:, :-1]) & followed_bt))


def _real(model: "Transformer", token: Any, mask_bt: Any = None) -> np.ndarray | None:
    """Which tokens are real; None: all of them, or that is not known."""
    padding_id = model.config.padding_id
    known = token if mask_bt is None else mask_bt
    if token is None or tf.is_symbolic_tensor(known) or (mask_bt is None and (padding_id is None or np.ndim(token) == 3)):
        return None
    return np.asarray(known) != padding_id if mask_bt is None else np.asarray(known, bool)


def _packing(model: "Transformer", mask_bt: np.ndarray | None, steps: int = STEPS) -> Packing | None:
    """The packing of these tokens, whose number is one of so many; None where little is saved."""
    if mask_bt is None or mask_bt.all():
        return None
    index_n = np.flatnonzero(mask_bt)
    step = -(-mask_bt.size // steps)
    count = step * max(1, -(-index_n.size // step))
    saved = mask_bt.size - count
    if saved <= 0 or 16 * saved < mask_bt.size or saved * model.config.model_width < model.pack_from:
        return None
    place_bt = np.zeros(mask_bt.shape, np.int32)
    place_bt[mask_bt] = np.arange(index_n.size)
    index_n = np.pad(index_n.astype(np.int32), (0, count - index_n.size))
    return Packing(tf.constant(index_n), tf.constant(place_bt), tf.constant(mask_bt))


def pack(x_btd: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """`x_1nd`, the packed tokens of the rows, with any axes after the first two; x itself without a packing."""
    if packing is None:
        return x_btd

    @tf.custom_gradient
    def packed(x_btd: tf.Tensor) -> tuple[tf.Tensor, Any]:
        x_pd = tf.reshape(x_btd, [-1, *keras.ops.shape(x_btd)[2:]])
        return tf.gather(x_pd, packing.index_n)[tf.newaxis], lambda dx_1nd: unpack(dx_1nd, packing)

    return packed(x_btd)


def unpack(x_1nd: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """`x_btd`, zeros where a position is not packed; x itself without a packing. The inverse of `pack`, and its gradient."""
    if packing is None:
        return x_1nd

    @tf.custom_gradient
    def unpacked(x_1nd: tf.Tensor) -> tuple[tf.Tensor, Any]:
        x_md = tf.concat([x_1nd[0], tf.zeros_like(x_1nd[0, :1])], axis=0)  # faster than to replace what is not packed
        x_btd = tf.gather(x_md, tf.where(packing.mask_bt, packing.place_bt, tf.shape(x_1nd)[1]))
        return x_btd, lambda dx_btd: _zero_fillers(pack(dx_btd, packing), packing)

    return unpacked(x_1nd)


def real(packing: Packing) -> tf.Tensor:
    """Which packed tokens do not only fill n up: `1 n`."""
    place_p, mask_p = tf.reshape(packing.place_bt, [-1]), tf.reshape(packing.mask_bt, [-1])
    own_n = tf.gather(place_p, packing.index_n) == tf.range(tf.shape(packing.index_n)[0])
    return (own_n & tf.gather(mask_p, packing.index_n))[tf.newaxis]


def rows(x_btd: tf.Tensor, packing: Packing | None) -> Any:
    """The shape `b t` of the rows that x has, or had before it was packed."""
    return x_btd.shape[:2] if packing is None else packing.mask_bt.shape


def kept(keep: Mapping[str, Any], packing: Packing | None) -> Mapping[str, Any]:
    """The keep masks of a stack's layers, packed but for those of attention's weights."""
    if packing is None:
        return keep
    return {
        name: kept(mask, packing) if isinstance(mask, Mapping) else mask if name == "weights_dropout" else pack(mask, packing)
        for name, mask in keep.items()
    }


def _zero_fillers(x_1nd: tf.Tensor, packing: Packing) -> tf.Tensor:
    """x with zeros for what fills n up."""
    return tf.where(tf.reshape(real(packing), [1, -1, *[1] * (len(x_1nd.shape) - 2)]), x_1nd, tf.zeros((), x_1nd.dtype))
