"""Runs a model or its training loss without padding: finds the tokens worth keeping."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import KeyPath

from reference_numpy import TransformerConfig, checks

from ..dropout import Keep, part
from ..framework import Array, is_traced
from ..inputs import sides
from ..kernels.unpadding import PaddedMask, Tokens, counted, pad, unpad
from ..loss import cross_entropy, teacher_forcing
from ..mask import padding_mask, real_rows, token_mask
from ..precision import upcast_to
from ..transformer import Transformer
from ..values import Text

__all__ = [
    "LEAST",
    "Driver",
    "Flat",
    "driver",
    "forward",
    "is_known",
    "of_forward",
    "of_loss",
    "training_loss",
    "unpadded",
]

LEAST = 16384  # saved positions times model width; saving less costs as much as it gains
STEPS = 16  # most flat lengths per shape of rows; each has its own program
SHARE = 16  # unpadding must save at least one in SHARE positions

Result = TypeVar("Result")
Side = Text | jax.Array | None  # one side of a model's input


class Flat(NamedTuple):
    """The flat tokens of source and target; None: all positions of a side."""

    source: Tokens | None = None
    target: Tokens | None = None


class Driver(NamedTuple):
    """How a call runs without padding; both functions take the call's arguments by name.

    tokens: (config, least, ...) -> the tokens worth keeping, found on the host. run: (model,
    tokens, ...) -> the result of the call.
    """

    tokens: Callable[..., Flat]
    run: Callable[..., jax.Array]


def driver(function: Callable[..., Result]) -> Driver | None:
    """Returns the driver of a Transformer's call or `training_loss`; None for other functions, and
    for models with modules of other packages, which may look at neighboring tokens.
    """
    model, package = getattr(function, "__self__", function), __name__.partition(".")[0]
    if not isinstance(model, Transformer):
        return None
    modules = [one for _, one in nnx.iter_graph(model) if isinstance(one, nnx.Module)]
    if any(type(one).__module__.partition(".")[0] != package for one in modules if callable(one)):
        return None
    name = "__call__" if function is model else getattr(function, "__name__", "")
    return _DRIVERS.get(name)


def unpadded(function: Callable[..., Result], least: int = LEAST) -> Callable[..., Result]:
    """Wraps a Transformer, or its `training_loss`, to skip padding.

    least: saved positions times model width from which skipping pays. Calls of the model accept
    skip_padding=True, which also skips target padding; its logits are zeros (PADDING).
    """
    model: Any = getattr(function, "__self__", function)
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = {**signature.bind_partial(*args).arguments, **kwargs}
        found = driver(function)
        if found is None:
            return function(**arguments)
        return found.run(model, found.tokens(model.config, least, **arguments), **arguments)

    return call


def forward(
    model: Transformer,
    flat: Flat,
    source: Side,
    target: Side = None,
    keep: Keep | None = None,
    skip_padding: bool = False,
) -> jax.Array:
    """Computes the model's call, `b t v`; zeros for target tokens that are not flat.

    skip_padding: the rows of target padding are zeros (PADDING).
    """
    source_text, target_text = sides(model.config, source, target)
    if target_text is None:
        return model(source_text, keep=keep)
    if any(flat):
        logits_1nv, tokens = _logits(model, flat, source_text, target_text, keep)
        logits_btv = pad(logits_1nv, tokens)
    else:
        logits_btv = model(source_text, target_text, keep)
    if skip_padding and flat.target is None:
        return real_rows(logits_btv, target_text.real(model.config.padding_id))
    return logits_btv


def training_loss(
    model: Transformer,
    flat: Flat,
    source: Side,
    target: jax.Array,
    smoothing: float = 0.0,
    total: jax.Array | int | None = None,
    keep: Keep | None = None,
    **weights: Any,
) -> jax.Array:
    """Computes `Transformer.training_loss` as the sum over flat labels.

    weights: of routers; all positions are computed then.
    """
    if not any(flat):
        return model.training_loss(source, target, smoothing, total, keep, **weights)
    target_bt, label_bt = teacher_forcing(target)
    source_text, _ = sides(model.config, source, target_bt)
    logits_1nv, tokens = _logits(model, flat, source_text, Text(target_bt), keep)
    mask_1n = counted(token_mask(label_bt, model.config.padding_id), tokens)
    label_1n = unpad(jnp.asarray(label_bt), tokens)
    logits_1nv = upcast_to(logits_1nv, model.inputs("target").embedding.table.dtype)
    return cross_entropy(logits_1nv, label_1n, mask_1n, smoothing, total)


def _logits(
    model: Transformer, flat: Flat, source: Text | None, target: Text, keep: Keep | None
) -> tuple[jax.Array, Tokens]:
    """Returns the logits `1 n v` of the target's flat tokens, and these tokens."""

    def side(name: str, text: Text, tokens: Tokens | None) -> tuple[jax.Array, Any, list[Any]]:
        """Returns the input of a stack, its self-attention mask, and its other arguments."""
        x_btd, mask_bt, position_bt = model.embed(name, text, keep)
        tokens = tokens or Tokens(None, None, mask_bt)
        own = _flat(part(keep, "encoder" if name == "source" else "decoder"), tokens)
        rest = [own, unpad(position_bt, tokens), position_bt.max(initial=0) + 1]
        return unpad(x_btd, tokens), PaddedMask(padding_mask(mask_bt), tokens, tokens), rest

    memory_1md = source_mask = None
    if source is not None:
        x_1md, source_mask, rest = side("source", source, flat.source)
        memory_1md = model.encoder(x_1md, source_mask, *rest)
    x_1nd, self_mask, rest = side("target", target, flat.target)
    cross_mask = source_mask and source_mask._replace(query=self_mask.query)
    x_1nd = model.decoder(x_1nd, memory_1md, self_mask, cross_mask, *rest)
    return model.head(x_1nd), self_mask.query


def _flat(keep: Keep | None, tokens: Tokens) -> Keep | None:
    """Flattens keep masks of a stack, except those of attention weights."""

    def flat(path: KeyPath, keep: jax.Array) -> jax.Array:
        if path[-1].key in ("weights_dropout", "embedding_dropout"):
            return keep
        rows = (*tokens.mask_bt.shape, *(keep.shape[-1:] or (1,)))
        checks.check_keep(keep.shape, str(keep.dtype), rows, 0.0)
        return unpad(jnp.broadcast_to(keep, rows), tokens)

    return jax.tree.map_with_path(flat, keep)


def of_forward(
    config: TransformerConfig,
    least: int,
    source: Side | np.ndarray = None,
    target: Side | np.ndarray = None,
    skip_padding: bool = False,
    **others: Any,
) -> Flat:
    """Returns the tokens of a call: the real ones of the source, with skip_padding of the target.

    Nothing attends to source padding. least: as in `unpadded`.
    """
    if target is None or any(map(_is_spread, jax.tree.leaves((source, target)))):
        return Flat()
    masks = (_real(config, least, side) for side in (source, target if skip_padding else None))
    return Flat(*(_tokens(mask_bt, _steps(config, least, mask_bt)) for mask_bt in masks))


def of_loss(
    config: TransformerConfig,
    least: int,
    source: Side | np.ndarray = None,
    target: Side | np.ndarray = None,
    *,
    parts: int = 1,
    **others: Any,
) -> Flat:
    """Returns the tokens of `training_loss`: real source tokens, and the target tokens that matter.

    A counted label depends on its own position and on the real tokens before it in its row. parts:
    if more than one, the tokens have an axis of parts of the rows, all of one flat length. Both
    sides skip the same share of positions, so that a shape of rows has few programs. A loss with
    weights of routers skips none.
    """
    if any(others.get(name) for name in ("router_aux_weight", "router_z_weight")):
        return Flat()
    if any(map(_is_spread, jax.tree.leaves((source, target)))):
        return Flat()
    mask_bt = _real(config, least, target)
    if mask_bt is not None:
        label_bt = mask_bt[:, 1:]
        later_bt = np.logical_or.accumulate(label_bt[:, ::-1], axis=1)[:, ::-1]
        mask_bt = (label_bt | mask_bt[:, :-1]) & later_bt
    masks = _real(config, least, source), mask_bt
    steps = [_steps(config, least, mask, parts) for mask in masks]
    pairs = zip(masks, steps, strict=True)
    return Flat(*(_tokens(mask, own and max(steps), parts) for mask, own in pairs))


_DRIVERS = {
    "__call__": Driver(of_forward, forward),
    "training_loss": Driver(of_loss, training_loss),
}


def _real(config: TransformerConfig, least: int, side: Side | np.ndarray) -> np.ndarray | None:
    """Returns which tokens are real; None if unknown, or if too little could be saved."""
    text = Text.of(side)
    if text is None or not is_known(text.ids if text.mask is None else text.mask):
        return None
    token, mask_bt = text.ids, text.mask
    if token.ndim < 2 or math.prod(token.shape[:2]) * config.model_width < least:
        return None
    if mask_bt is not None:
        real_bt = np.asarray(mask_bt)
        return real_bt if real_bt.dtype == bool and real_bt.shape == token.shape[:2] else None
    if config.padding_id is None or token.ndim != 2:
        return None
    return np.asarray(token) != config.padding_id


def is_known(x: Array) -> bool:
    """Whether x has values on one device; rows on several devices are not gathered."""
    return not is_traced(x) and not _is_spread(x)


def _is_spread(x: Array) -> bool:
    """Whether x is spread over several devices."""
    return isinstance(x, jax.Array) and not is_traced(x) and len(x.sharding.device_set) > 1


def _steps(
    config: TransformerConfig, least: int, mask_bt: np.ndarray | None, parts: int = 1
) -> int:
    """Returns the steps of `_step` positions that hold every part's tokens; 0: too little saved."""
    if mask_bt is None or not mask_bt.size:
        return 0
    positions, step = mask_bt.size // parts, _step(mask_bt, parts)
    most = np.count_nonzero(mask_bt.reshape(parts, -1), axis=1).max()
    steps = max(1, -(-most // step))
    saved = positions - steps * step
    enough = saved * SHARE >= positions and saved * parts * config.model_width >= least
    return steps if enough else 0


def _step(mask_bt: np.ndarray, parts: int) -> int:
    return -(-(mask_bt.size // parts) // STEPS)


def _tokens(mask_bt: np.ndarray | None, steps: int, parts: int = 1) -> Tokens | None:
    if mask_bt is None or not steps:
        return None
    mask_pm = mask_bt.reshape(parts, -1)
    place_pm = np.where(mask_pm, mask_pm.cumsum(axis=1, dtype=np.int32) - 1, 0)
    index_pn = np.zeros((parts, steps * _step(mask_bt, parts)), np.int32)
    part, position = mask_pm.nonzero()
    index_pn[part, place_pm[part, position]] = position
    if parts == 1:
        return Tokens(index_pn[0], place_pm.reshape(mask_bt.shape), mask_bt)
    rows = parts, -1, mask_bt.shape[1]
    return Tokens(index_pn, place_pm.reshape(rows), mask_bt.reshape(rows))
