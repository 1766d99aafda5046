"""A model's call and its training loss without padding: which tokens are worth it, and the run."""

import inspect
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
from ..mask import padding_mask, token_mask
from ..rotary import Rotation
from ..stacks import Stack, Through, optional
from ..transformer import Transformer

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

    least: the saved positions times the model's width from which that is worth it.
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
    source: jax.Array | None,
    target: jax.Array | None = None,
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    keep: Keep | None = None,
    segment_bs: jax.Array | None = None,
    skip_padding: bool = False,
) -> jax.Array:
    """The model's call: `b t v`, zeros for tokens of the target that do not lie flat."""
    given = source, target, source_mask_bs, target_mask_bt, keep, segment_bs
    if target is None or not any(flat):
        return model(*given, skip_padding)
    logits_1nv, tokens = _logits(model, flat, source, target, *given[2:])
    logits_btv = pad(logits_1nv, tokens)
    if skip_padding and flat.target is None:
        return jnp.where(tokens.mask_bt[..., None], logits_btv, 0)
    return logits_btv


def training_loss(
    model: Transformer,
    flat: Flat,
    source: jax.Array | None,
    target: jax.Array,
    smoothing: float = 0.0,
    total: jax.Array | int | None = None,
    keep: Keep | None = None,
) -> jax.Array:
    """`Transformer.training_loss`: the sum over the flat labels."""
    if not any(flat):
        return model.training_loss(source, target, smoothing, total, keep)
    target_bt, label_bt = teacher_forcing(target)
    logits_1nv, tokens = _logits(model, flat, source, target_bt, keep=keep)
    mask_1n = counted(token_mask(label_bt, model.config.padding_id), tokens)
    label_1n = unpad(jnp.asarray(label_bt), tokens)
    return cross_entropy(model.widened(logits_1nv), label_1n, mask_1n, smoothing, total)


def _logits(
    model: Transformer,
    flat: Flat,
    source: jax.Array | None,
    target: jax.Array,
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    keep: Keep | None = None,
    segment_bs: jax.Array | None = None,
) -> tuple[jax.Array, Tokens]:
    """The logits `1 n v` of the target's flat tokens, and these."""
    model.check_given(source, target, source_mask_bs, target_mask_bt, segment_bs)
    memory_1nd: jax.Array | None = None
    source_mask: Any = None
    if source is not None:
        given = source, source_mask_bs, keep, segment_bs
        x_bsd, source_mask_bs, position_bs = model.embed("source", *given)
        read = flat.source or Tokens(None, None, source_mask_bs)
        source_mask = PaddedMask(padding_mask(source_mask_bs), read, read)
        encoder_keep = _flat(part(keep, "encoder"), read)

        def encode(layer: Any, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
            return layer(x, source_mask, **optional(rotation, encoder_keep, index))

        memory_1nd = _walk(model.encoder, unpad(x_bsd, read), encode, position_bs, read)
    x_btd, target_mask_bt, position_bt = model.embed("target", target, target_mask_bt, keep)
    written = flat.target or Tokens(None, None, target_mask_bt)
    self_mask: Any = PaddedMask(padding_mask(target_mask_bt), written, written)
    cross_mask = source_mask and source_mask._replace(query=written)
    decoder_keep = _flat(part(keep, "decoder"), written)

    def decode(layer: Any, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
        own = optional(rotation, decoder_keep, index)
        return layer(x, memory_1nd, self_mask, cross_mask, **own)

    x_1nd = _walk(model.decoder, unpad(x_btd, written), decode, position_bt, written)
    return model.head(x_1nd), written


def _walk(
    stack: Stack, x_1nd: jax.Array, through: Through, position_bt: jax.Array, tokens: Tokens
) -> jax.Array:
    """`Stack.walk` of flat tokens: the length of the text is that of its rows."""
    return stack.walk(x_1nd, through, unpad(position_bt, tokens), position_bt.max(initial=0) + 1)


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
    source_mask_bs: Any = None,
    target_mask_bt: Any = None,
    skip_padding: bool = False,
    **others: Any,
) -> Flat:
    """The tokens of a call: the real ones of the source, and with skip_padding of the target.

    Nothing attends to the padding of a source. least: as `unpadded`.
    """
    if target is None or any(map(_is_spread, (source, target, source_mask_bs, target_mask_bt))):
        return Flat()
    source_bs = _real(config, least, source, source_mask_bs)
    target_bt = _real(config, least, target, target_mask_bt) if skip_padding else None
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
    if any(map(_is_spread, (source, target))):
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


def _real(
    config: TransformerConfig, least: int, token: Any, mask_bt: Any = None
) -> np.ndarray | None:
    """Which tokens are real; None if that is unknown, or if too little could be saved."""
    if token is None or not is_known(token if mask_bt is None else mask_bt) or token.ndim < 2:
        return None
    if np.prod(token.shape[:2]) * config.model_width < least:
        return None
    if mask_bt is not None:
        mask_bt = np.asarray(mask_bt)
        return mask_bt if mask_bt.dtype == bool and mask_bt.shape == token.shape[:2] else None
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
