"""A model's call and its training loss without padding: which tokens are worth it, and the run."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reference_numpy import TransformerConfig, checks

from ..dropout import Keep, part
from ..framework import is_traced
from ..kernels.unpadding import PaddedMask, Tokens, counted, pad, unpad
from ..loss import cross_entropy, teacher_forcing
from ..mask import padding_mask, real_rows, token_mask
from ..stacks import Stack, Through
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

LEAST = 16384  # saved positions times the model's width: with less, unpadding takes what it saves
STEPS = 16  # lengths of a flat row, at most, for one shape of rows: each has its own program
SHARE = 16  # unpadding saves at least one in SHARE positions


class Flat(NamedTuple):
    """The tokens of source and target that lie flat; None: all of a side's positions do."""

    source: Tokens | None = None
    target: Tokens | None = None


class Driver(NamedTuple):
    """How a call is run without padding; both functions take the arguments of the call by name.

    tokens: (config, least, ...) -> the tokens that are worth it, found on the host.
    run: (model, tokens, ...) -> what the call returns.
    """

    tokens: Callable[..., Flat]
    run: Callable[..., jax.Array]


def driver(function: Callable[..., Any]) -> Driver | None:
    """The driver of a Transformer's call or its `training_loss`; None of any other function.

    A model whose modules are not all of this package keeps its rows: others may look at the
    neighbours of a token, which unpadding changes.
    """
    model, package = getattr(function, "__self__", function), __name__.partition(".")[0]
    if not isinstance(model, Transformer):
        return None
    modules = [one for _, one in nnx.iter_graph(model) if isinstance(one, nnx.Module)]
    if any(type(one).__module__.partition(".")[0] != package for one in modules if callable(one)):
        return None
    name = "__call__" if function is model else getattr(function, "__name__", "")
    return _DRIVERS.get(name)


def unpadded(function: Callable[..., Any], least: int = LEAST) -> Callable[..., Any]:
    """The same call of a Transformer, or of its `training_loss`, which leaves padding out.

    least: the saved positions times the model's width from which that is worth it. With
    `skip_padding=True` a call of the model leaves out the target's padding, too: its rows of the
    logits are zeros (PADDING).
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
    source: Any,
    target: Any = None,
    keep: Keep | None = None,
    skip_padding: bool = False,
) -> jax.Array:
    """The model's call: `b t v`, zeros for tokens of the target that do not lie flat.

    skip_padding: the rows at padding of the target are zeros (PADDING).
    """
    source, target = model.check_given(source, target)
    if target is None:
        return model(source, keep=keep)
    if any(flat):
        logits_btv = pad(*_logits(model, flat, source, target, keep))
    else:
        logits_btv = model(source, target, keep)
    if skip_padding and flat.target is None:
        return real_rows(logits_btv, model.token_mask(target))
    return logits_btv


def training_loss(
    model: Transformer,
    flat: Flat,
    source: Any,
    target: jax.Array,
    smoothing: float = 0.0,
    total: jax.Array | int | None = None,
    keep: Keep | None = None,
) -> jax.Array:
    """`Transformer.training_loss`: the sum over the flat labels."""
    if not any(flat):
        return model.training_loss(source, target, smoothing, total, keep)
    target_bt, label_bt = teacher_forcing(target)
    logits_1nv, tokens = _logits(model, flat, *model.check_given(source, target_bt), keep)
    mask_1n = counted(token_mask(label_bt, model.config.padding_id), tokens)
    label_1n = unpad(jnp.asarray(label_bt), tokens)
    return cross_entropy(model.widened(logits_1nv), label_1n, mask_1n, smoothing, total)


def _logits(
    model: Transformer, flat: Flat, source: Text | None, target: Text, keep: Keep | None
) -> tuple[jax.Array, Tokens]:
    """The logits `1 n v` of the target's flat tokens, and these."""
    memory_1nd, source_mask = None, None
    if source is not None:
        x_bsd, source_mask_bs, position_bs = model.embed("source", source, keep)
        read = flat.source or Tokens(None, None, source_mask_bs)
        source_mask = PaddedMask(padding_mask(source_mask_bs), read, read)
        through = model.encoder.through(source_mask, _flat(part(keep, "encoder"), read))
        memory_1nd = _walk(model.encoder, x_bsd, through, position_bs, read)
    x_btd, target_mask_bt, position_bt = model.embed("target", target, keep)
    written = flat.target or Tokens(None, None, target_mask_bt)
    self_mask = PaddedMask(padding_mask(target_mask_bt), written, written)
    cross_mask = source_mask and source_mask._replace(query=written)
    keep = _flat(part(keep, "decoder"), written)
    through = model.decoder.through(memory_1nd, self_mask, cross_mask, keep)
    x_1nd = _walk(model.decoder, x_btd, through, position_bt, written)
    return model.head(x_1nd), written


def _walk(
    stack: Stack, x_btd: jax.Array, through: Through, position_bt: jax.Array, tokens: Tokens
) -> jax.Array:
    """`Stack.walk` of flat tokens `1 n d`, in a text as long as its rows."""
    length = position_bt.max(initial=0) + 1
    return stack.walk(unpad(x_btd, tokens), through, unpad(position_bt, tokens), length)


def _flat(keep: Any, tokens: Tokens, name: str = "") -> Any:
    """The keep masks of a stack for flat tokens; those of attention weights stay of rows."""
    if keep is None or name in ("weights_dropout", "embedding_dropout"):
        return keep
    if isinstance(keep, Mapping):
        return {name: _flat(one, tokens, name) for name, one in keep.items()}
    rows = (*tokens.mask_bt.shape, *(keep.shape[-1:] or (1,)))
    checks.check_keep(keep.shape, str(keep.dtype), rows, 0.0)
    return unpad(jnp.broadcast_to(keep, rows), tokens)


def of_forward(
    config: TransformerConfig,
    least: int,
    source: Any = None,
    target: Any = None,
    skip_padding: bool = False,
    **others: Any,
) -> Flat:
    """The tokens of a call: the real ones of the source, and with skip_padding of the target.

    Nothing attends to the padding of a source. least: as `unpadded`.
    """
    source, target = Text.of(source), Text.of(target)
    if target is None or any(map(_is_spread, jax.tree.leaves((source, target)))):
        return Flat()
    source_bs = _real(config, least, source)
    target_bt = _real(config, least, target) if skip_padding else None
    return Flat(
        *(_tokens(mask, _steps(config, least, mask)) for mask in (source_bs, target_bt)),
    )


def of_loss(
    config: TransformerConfig,
    least: int,
    source: Any = None,
    target: Any = None,
    *,
    parts: int = 1,
    **others: Any,
) -> Flat:
    """The tokens of `training_loss`: the real ones of the source, and of the target what counts.

    A label that counts depends on its own place and on the real tokens before it in its row.
    parts: with more than one, the tokens have an axis of parts of the rows, all of one flat length.
    Both sides leave out the same share of their positions, so that one shape of rows has few
    programs, which take long to compile.
    """
    source, target = Text.of(source), Text.of(target)
    if any(map(_is_spread, jax.tree.leaves((source, target)))):
        return Flat()
    mask_bt = _real(config, least, target)
    if mask_bt is not None:
        label_bt = mask_bt[:, 1:]
        later_bt = np.logical_or.accumulate(label_bt[:, ::-1], axis=1)[:, ::-1]
        mask_bt = (label_bt | mask_bt[:, :-1]) & later_bt
    masks = _real(config, least, source), mask_bt
    steps = [_steps(config, least, mask, parts) for mask in masks]
    return Flat(
        *(_tokens(mask, own and max(steps), parts) for mask, own in zip(masks, steps, strict=True))
    )


_DRIVERS = {
    "__call__": Driver(of_forward, forward),
    "training_loss": Driver(of_loss, training_loss),
}


def _real(config: TransformerConfig, least: int, text: Text | None) -> np.ndarray | None:
    """Which tokens are real; None if that is unknown, or if too little could be saved."""
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


def is_known(x: Any) -> bool:
    """Whether x has values on one device: rows on several devices are not brought together."""
    return not is_traced(x) and not _is_spread(x)


def _is_spread(x: Any) -> bool:
    """Whether x lies on several devices."""
    return isinstance(x, jax.Array) and not is_traced(x) and len(x.sharding.device_set) > 1


def _steps(
    config: TransformerConfig, least: int, mask_bt: np.ndarray | None, parts: int = 1
) -> int:
    """The steps of `_step` positions that hold the tokens of every part; 0: too little is saved."""
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
    length = steps * _step(mask_bt, parts)
    found = [_tokens_of(one, length) for one in mask_bt.reshape(parts, -1, mask_bt.shape[1])]
    if parts == 1:
        return found[0]
    return Tokens(*(np.stack(arrays) for arrays in zip(*found, strict=True)))


def _tokens_of(mask_bt: np.ndarray, length: int) -> Tokens:
    place_m = np.flatnonzero(mask_bt)
    index_n = np.zeros(length, np.int32)
    index_n[: len(place_m)] = place_m
    place_bt = np.zeros(mask_bt.shape, np.int32)
    place_bt[mask_bt] = np.arange(len(place_m))
    return Tokens(index_n, place_bt, mask_bt)
