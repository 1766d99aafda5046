"""Only real tokens: those of all rows of a batch laid side by side in one row, so that nothing is computed for padding but attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reference_numpy import checks

from ..framework import is_traced

__all__ = [
    "PACK_FROM",
    "Packing",
    "Packings",
    "counted",
    "kept",
    "of_forward",
    "of_loss",
    "pack",
    "packs",
    "rows",
    "unpack",
]

PACK_FROM = (
    16384  # saved positions times the model's width: with less, packing takes as long as it saves
)
STEPS = (
    16  # of the number of positions: so many lengths of a packed row, and so many programs at most
)
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
    model: Any,
    source: Any = None,
    target: Any = None,
    source_mask_bs: Any = None,
    target_mask_bt: Any = None,
    skip_padding: bool = False,
    **others: Any,
) -> Packings:
    """Of the call of a model: the source, since nothing attends to its padding, and with skip_padding the target.

    model: what has a config and `pack_from`, the least number of saved positions times the width that is worth it.
    """
    if target is None:
        return Packings()
    masks = (
        _real(model, source, source_mask_bs),
        _real(model, target, target_mask_bt) if skip_padding else None,
    )
    return Packings(*(_of_mask(mask_bt, _steps(model, mask_bt)) for mask_bt in masks))


def of_loss(
    model: Any, source: Any = None, target: Any = None, *, parts: int = 1, **others: Any
) -> Packings:
    """Of `training_loss`: of the target what a label that counts depends on, that is the places of these labels and the real tokens before
    the last of them in the row. More than one part: packings of so many parts of the rows, which have an axis for them and one length.
    Both sides leave out the same share of their positions, so that a shape of rows has few programs, which take long to compile.
    """
    mask_bt = _real(model, target)
    if mask_bt is not None:
        label_bt = mask_bt[:, 1:]
        later_bt = np.logical_or.accumulate(label_bt[:, ::-1], axis=1)[:, ::-1]
        mask_bt = (label_bt | mask_bt[:, :-1]) & later_bt
    masks = _real(model, source), mask_bt
    steps = [_steps(model, mask_bt, parts) for mask_bt in masks]
    return Packings(
        *(
            _of_mask(mask_bt, own and max(steps), parts)
            for mask_bt, own in zip(masks, steps, strict=True)
        )
    )


def packs(model: nnx.Module) -> bool:
    """Whether every module that is called is one of this package: another may look at the neighbours of a token, which packing changes."""
    package = __name__.partition(".")[0]
    called = (
        type(part)
        for _, part in nnx.iter_graph(model)
        if isinstance(part, nnx.Module) and callable(part)
    )
    return all(kind.__module__.partition(".")[0] == package for kind in called)


def pack(x_btd: jax.Array, packing: Packing | None) -> jax.Array:
    """The packed tokens, `1 n d`, of rows `b t d`, with any axes for d.

    Its gradient is `unpack`: no sum, for no token is there twice but the filler, whose result nobody may use.
    """
    return x_btd if packing is None else _pack(packing, x_btd)


def unpack(x_1nd: jax.Array, packing: Packing | None) -> jax.Array:
    """Rows `b t d` of packed tokens, zeros where nothing was packed. Its gradient is `pack`, with zeros for the filler."""
    return x_1nd if packing is None else _unpack(packing, x_1nd)


def counted(mask_bt: jax.Array, packing: Packing | None) -> jax.Array:
    """A mask of positions, packed; False for the filler."""
    if packing is None:
        return mask_bt
    return pack(mask_bt, packing) & _is_token(packing)


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


def rows(x: jax.Array, packing: Packing | None) -> tuple[int, ...]:
    """The shape of x as rows."""
    return x.shape if packing is None else (*packing.place_bt.shape, *x.shape[2:])


def _kept(keep: jax.Array, packing: Packing) -> jax.Array:
    rows = (*packing.place_bt.shape, *(keep.shape[-1:] or (1,)))
    checks.check_keep(keep.shape, str(keep.dtype), rows, 0.0)
    return pack(jnp.broadcast_to(keep, rows), packing)


@jax.custom_vjp
def _pack(packing: Packing, x_btd: jax.Array) -> jax.Array:
    return jnp.take(jax.lax.collapse(x_btd, 0, 2), packing.index_n, axis=0, mode="clip")[None]


@jax.custom_vjp
def _unpack(packing: Packing, x_1nd: jax.Array) -> jax.Array:
    mask_bt1 = jnp.expand_dims(packing.mask_bt, tuple(range(2, x_1nd.ndim)))
    return jnp.where(mask_bt1, jnp.take(x_1nd[0], packing.place_bt, axis=0, mode="clip"), 0)


def _packed_gradient(packing: Packing, g_btd: jax.Array) -> jax.Array:
    is_token_1n1 = jnp.expand_dims(_is_token(packing), tuple(range(2, g_btd.ndim)))
    return jnp.where(is_token_1n1, _pack(packing, g_btd), 0)


def _is_token(packing: Packing) -> jax.Array:
    """Whether what is packed is a token, and not the filler, `1 n`."""
    place_1n, mask_1n = (_pack(packing, x_bt) for x_bt in (packing.place_bt, packing.mask_bt))
    return mask_1n & (place_1n == jnp.arange(place_1n.shape[1]))


_pack.defvjp(
    lambda packing, x_btd: (_pack(packing, x_btd), packing),
    lambda packing, g_1nd: (None, _unpack(packing, g_1nd)),
)
_unpack.defvjp(
    lambda packing, x_1nd: (_unpack(packing, x_1nd), packing),
    lambda packing, g_btd: (None, _packed_gradient(packing, g_btd)),
)


def _real(model: Any, token: Any, mask_bt: Any = None) -> np.ndarray | None:
    """Which tokens are real; None where that is not known, is true of all, or where nothing that is worth it could be saved."""
    mask_of = token if mask_bt is None else mask_bt
    if (
        token is None
        or not is_known(mask_of)
        or token.ndim < 2
        or np.prod(token.shape[:2]) * model.config.model_width < model.pack_from
    ):
        return None
    if mask_bt is not None:
        mask_bt = np.asarray(mask_bt)
        return mask_bt if mask_bt.dtype == bool and mask_bt.shape == token.shape[:2] else None
    padding_id = model.config.padding_id
    return None if padding_id is None or token.ndim != 2 else np.asarray(token) != padding_id


def is_known(x: Any) -> bool:
    """Whether x has values, and all of them on one device: rows that lie on several are not brought together."""
    return not is_traced(x) and not (isinstance(x, jax.Array) and len(x.sharding.device_set) > 1)


def _steps(model: Any, mask_bt: np.ndarray | None, parts: int = 1) -> int:
    """How many steps of `_step` positions every part of the rows has room in; 0 where not enough is saved."""
    if mask_bt is None or not mask_bt.size:
        return 0
    positions, step = mask_bt.size // parts, _step(mask_bt, parts)
    most = np.count_nonzero(mask_bt.reshape(parts, -1), axis=1).max()
    steps = max(1, -(-most // step))
    saved = positions - steps * step
    return (
        0
        if saved * LEAST < positions or saved * parts * model.config.model_width < model.pack_from
        else steps
    )


def _step(mask_bt: np.ndarray, parts: int) -> int:
    return -(-(mask_bt.size // parts) // STEPS)


def _of_mask(mask_bt: np.ndarray | None, steps: int, parts: int = 1) -> Packing | None:
    if mask_bt is None or not steps:
        return None
    length = steps * _step(mask_bt, parts)
    packings = [
        _packing(part_bt, length) for part_bt in mask_bt.reshape(parts, -1, mask_bt.shape[1])
    ]
    return (
        packings[0]
        if parts == 1
        else Packing(*(np.stack(arrays) for arrays in zip(*packings, strict=True)))
    )


def _packing(mask_bt: np.ndarray, length: int) -> Packing:
    place_m = np.flatnonzero(mask_bt)
    index_n = np.zeros(length, np.int32)
    index_n[: len(place_m)] = place_m
    place_bt = np.zeros(mask_bt.shape, np.int32)
    place_bt[mask_bt] = np.arange(len(place_m))
    return Packing(index_n, place_bt, mask_bt)
