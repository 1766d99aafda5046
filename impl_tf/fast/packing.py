"""Only real tokens: those of all rows of a batch laid side by side in one row, so that nothing is computed for padding but attention."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from reference_numpy import checks

from ..framework import keras, other_layers

if TYPE_CHECKING:
    from ..transformer import Transformer

__all__ = [
    "PACK_FROM",
    "Packing",
    "Packings",
    "counted",
    "kept",
    "of_forward",
    "of_loss",
    "pack",
    "rows",
    "unpack",
]

PACK_FROM = (
    16384  # saved positions times the model's width: with less, packing takes as long as it saves
)
STEPS = 16  # of the number of positions: so many lengths of a packed row at most, each a graph
LEAST = 16  # packing saves at least one in so many positions


class Packing(NamedTuple):
    """Which positions of the rows `b t` are packed, and where.

    index_n: the place of every packed token among all `b * t` positions; that of the filler at the end is 0. place_bt: the place of every
    position among the packed tokens, 0 where it is not packed. mask_bt: True = packed.
    """

    index_n: Any
    place_bt: Any
    mask_bt: Any


class Packings(NamedTuple):
    """Those of source and target; None: the rows are used as they are."""

    source: Packing | None = None
    target: Packing | None = None


def of_forward(
    model: "Transformer",
    source: Any,
    target: Any,
    source_mask_bs: Any = None,
    target_mask_bt: Any = None,
    skip_padding: bool = False,
) -> Packings:
    """Of the call of a model: the source, since nothing attends to its padding, and with skip_padding the target."""
    masks = (
        _real(model, source, source_mask_bs),
        _real(model, target, target_mask_bt) if skip_padding else None,
    )
    return Packings(*(_of_mask(mask_bt, _steps(model, mask_bt)) for mask_bt in masks))


def of_loss(model: "Transformer", source: Any, target: Any) -> Packings:
    """Of `training_loss`: of the target what a label that counts depends on, that is the places of these labels and the real tokens before
    the last of them in the row.

    Both sides leave out the same share of their positions, so that a shape of rows has few graphs, which take long to compile: one for
    each length that saves something, and others where one side saves too little and is used as it is.
    """
    mask_bt = _real(model, target)
    if mask_bt is not None:
        label_bt = mask_bt[:, 1:]
        later_bt = np.logical_or.accumulate(label_bt[:, ::-1], axis=1)[:, ::-1]
        mask_bt = (label_bt | mask_bt[:, :-1]) & later_bt
    masks = _real(model, source), mask_bt
    steps = [_steps(model, mask_bt) for mask_bt in masks]
    return Packings(
        *(_of_mask(mask_bt, own and max(steps)) for mask_bt, own in zip(masks, steps, strict=True))
    )


def pack(x_btd: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """The packed tokens, `1 n d`, of rows `b t d`, with any axes for d.

    Its gradient is `unpack`: no sum, for no token is there twice but the filler, whose result nobody may use.
    """
    if packing is None:
        return x_btd

    @tf.custom_gradient
    def packed(x_btd: tf.Tensor) -> tuple[tf.Tensor, Any]:
        x_pd = tf.reshape(x_btd, [-1, *keras.ops.shape(x_btd)[2:]])
        return tf.gather(x_pd, packing.index_n)[tf.newaxis], lambda g_1nd: unpack(g_1nd, packing)

    return packed(x_btd)


def unpack(x_1nd: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """Rows `b t d` of packed tokens, zeros where nothing was packed. Its gradient is `pack`, with zeros for the filler."""
    if packing is None:
        return x_1nd

    @tf.custom_gradient
    def unpacked(x_1nd: tf.Tensor) -> tuple[tf.Tensor, Any]:
        x_md = tf.concat(
            [x_1nd[0], tf.zeros_like(x_1nd[0, :1])], axis=0
        )  # faster than to replace what is not packed
        x_btd = tf.gather(x_md, tf.where(packing.mask_bt, packing.place_bt, tf.shape(x_1nd)[1]))
        return x_btd, lambda g_btd: _packed_gradient(g_btd, packing)

    return unpacked(x_1nd)


def counted(mask_bt: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """A mask of positions, packed; False for the filler."""
    return mask_bt if packing is None else pack(mask_bt, packing) & _is_token(packing)


def kept(keep: Mapping[str, Any], packing: Packing | None) -> Mapping[str, Any]:
    """The keep masks of a layer, by site, packed; those of attention weights, `b h t s`, are of rows always."""
    if packing is None:
        return keep
    return {
        name: kept(part, packing)
        if isinstance(part, Mapping)
        else part
        if name == "weights_dropout"
        else _kept(part, packing)
        for name, part in keep.items()
    }


def rows(x_btd: tf.Tensor, packing: Packing | None) -> Any:
    """The shape `b t` of x as rows."""
    return x_btd.shape[:2] if packing is None else packing.mask_bt.shape


def _kept(keep: tf.Tensor, packing: Packing) -> tf.Tensor:
    rows = (*packing.place_bt.shape, *(keep.shape[-1:] or (1,)))
    checks.check_keep(keep.shape, tf.as_dtype(keep.dtype).name, rows, 0.0)
    return pack(tf.broadcast_to(keep, rows), packing)


def _packed_gradient(g_btd: tf.Tensor, packing: Packing) -> tf.Tensor:
    is_token_1n1 = tf.reshape(_is_token(packing), [1, -1, *[1] * (len(g_btd.shape) - 2)])
    return tf.where(is_token_1n1, pack(g_btd, packing), tf.zeros((), g_btd.dtype))


def _is_token(packing: Packing) -> tf.Tensor:
    """Whether what is packed is a token, and not the filler, `1 n`."""
    place_1n, mask_1n = (pack(x_bt, packing) for x_bt in (packing.place_bt, packing.mask_bt))
    return mask_1n & (place_1n == tf.range(tf.shape(place_1n)[1]))


def _real(model: "Transformer", token: Any, mask_bt: Any = None) -> np.ndarray | None:
    """Which tokens are real; None where that is not known, is true of all, or where nothing that is worth it could be saved."""
    mask_of = token if mask_bt is None else mask_bt
    if token is None or tf.is_symbolic_tensor(mask_of) or token.ndim < 2:
        return None
    if np.prod(token.shape[:2]) * model.config.model_width < model.pack_from:
        return None
    if mask_bt is not None:
        mask_bt = np.asarray(mask_bt)
        return (
            mask_bt if mask_bt.dtype == bool and mask_bt.shape == tuple(token.shape[:2]) else None
        )
    padding_id = model.config.padding_id
    return None if padding_id is None or token.ndim != 2 else np.asarray(token) != padding_id


def _steps(model: "Transformer", mask_bt: np.ndarray | None) -> int:
    """How many steps of `_step` positions the rows have room in; 0 where not enough is saved."""
    if mask_bt is None or not mask_bt.size:
        return 0
    step = _step(mask_bt)
    steps = max(1, -(-int(np.count_nonzero(mask_bt)) // step))
    saved = mask_bt.size - steps * step
    if saved * LEAST < mask_bt.size or saved * model.config.model_width < model.pack_from:
        return 0
    return (
        0 if other_layers(model) else steps
    )  # one may look at the neighbours of a token, which packing changes


def _step(mask_bt: np.ndarray) -> int:
    return -(-mask_bt.size // STEPS)


def _of_mask(mask_bt: np.ndarray | None, steps: int) -> Packing | None:
    if mask_bt is None or not steps:
        return None
    place_m = np.flatnonzero(mask_bt)
    index_n = np.zeros(steps * _step(mask_bt), np.int32)
    index_n[: len(place_m)] = place_m
    place_bt = np.zeros(mask_bt.shape, np.int32)
    place_bt[mask_bt] = np.arange(len(place_m))
    return Packing(tf.constant(index_n), tf.constant(place_bt), tf.constant(mask_bt))
