"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from . import inputs
from .attention import MultiHeadAttention
from .framework import has_explicit_axes
from .layers import DecoderLayer
from .mask import padding_mask, token_mask
from .positional_encoding import token_positions
from .rotary import Rotation
from .stacks import Decoder
from .transformer import Transformer
from .values import Heads, Mask

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

BYPASSED: dict[type[nnx.Module], tuple[str, ...]] = {  # methods that a step does not call
    Transformer: ("__call__", "decode", "embed"),
    Decoder: ("__call__",),
    DecoderLayer: ("__call__",),
    MultiHeadAttention: ("__call__", "attend"),
}


class KeyValues(NamedTuple):
    """The keys and values that an attention has read; the keys are normed and rotated."""

    key_bsgk: jax.Array
    value_bsge: jax.Array

    def update(self, key_btgk: jax.Array, value_btge: jax.Array) -> "KeyValues":
        """The old keys and values, followed by those of the next tokens."""
        key_bsgk = jnp.concatenate([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, jnp.concatenate([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Those of the last tokens, as many as the window has; 0: of all."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(TypedDict):
    """What a step reads. source_mask_bs: the memory's token mask. target_mask_bt: the token mask of
    what was read. layers: for each layer the KeyValues of self_attention and, with a memory,
    cross_attention.
    """

    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, KeyValues]]


Held = Mapping[str, object]  # by a cache
Steps = tuple[Callable[..., Held], Callable[..., tuple[jax.Array, Held]]]


def start_cache(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: Mask = None,
    batch: int | None = None,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and none of the target.

    batch: the number of rows of a decoder-only model, which has no memory. Raises ValueError on
    shapes that do not fit, and as `check_steps`.
    """
    check_steps(model)
    config, embedding = model.config, model.inputs("target").embedding
    inputs.check_memory(config, memory_bsd, source_mask_bs)
    rows = batch if memory_bsd is None else len(memory_bsd)
    checks.check_batch(batch, None if memory_bsd is None else rows)
    dtype, heads = embedding.dtype or embedding.table.dtype, config.key_value_heads
    key_bsgk, value_bsge = (
        jnp.zeros((rows, 0, heads, size), dtype) for size in (config.key_size, config.value_size)
    )
    caches = []
    for layer in model.decoder.layers:
        caches.append({"self_attention": KeyValues(key_bsgk, value_bsge)})
        if memory_bsd is not None:
            of_memory = layer.cross_attention.keys_and_values(memory_bsd)
            caches[-1]["cross_attention"] = KeyValues(*of_memory)
    read_bt = jnp.zeros((rows, 0), bool)
    return {"source_mask_bs": source_mask_bs, "target_mask_bt": read_bt, "layers": caches}


def decode_step(
    model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: Mask = None
) -> tuple[jax.Array, Cache]:
    """Logits `b t v` of the target's next t tokens, as `decode` of all of it, and the cache after.

    The arrays of the cache grow with every step, so that each length has a program of its own;
    `programs.static_cache` has one for all. Nothing is dropped, whatever the model's mode. Raises
    ValueError on ids, masks and shapes that do not fit, and as `check_steps`.
    """
    check_steps(model)
    config, past_bt = model.config, cache["target_mask_bt"]
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    if target_mask_bt is None:
        target_mask_bt = token_mask(target, config.padding_id)
    kind = str(target_mask_bt.dtype)
    checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    model = nnx.view(model, deterministic=True)
    read_bt = jnp.concatenate([past_bt, target_mask_bt], axis=1)
    position_bt = positions(config, read_bt, target.shape[1])
    x_btd = inputs.embed(model, "target", target, position_bt, length=read_bt.shape[1])
    self_mask_bhts, source_mask_bs = padding_mask(read_bt), cache["source_mask_bs"]
    cross_mask_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)
    caches = list(cache["layers"])

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        x_btd, caches[index] = decoder_layer_step(
            layer, x_btd, caches[index], self_mask_bhts, cross_mask_bhts, rotation
        )
        return x_btd

    x_btd = model.decoder.walk(x_btd, through, position_bt)
    return model.head(x_btd), {**cache, "target_mask_bt": read_bt, "layers": caches}


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: jax.Array,
    cache: Mapping[str, KeyValues],
    self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None,
    rotation: Rotation | None = None,
) -> tuple[jax.Array, dict[str, KeyValues]]:
    """The layer on the next tokens of a target, and its cache after them.

    cache: self_attention, to which the tokens' own keys and values are appended; cross_attention,
    of the memory, if there is one. self_mask_bhts: over all tokens that were read, these among
    them.
    """
    after = dict(cache)

    def attend(y_btd: jax.Array) -> jax.Array:
        attention = layer.self_attention
        query_bthk, key_btgk, value_btge = attention.project(y_btd, y_btd, rotation)
        key_bsgk, value_bsge = read = cache["self_attention"].update(key_btgk, value_btge)
        after["self_attention"] = read.last(attention.scores.window)
        mask_bhts = None if self_mask_bhts is None else self_mask_bhts[..., -key_bsgk.shape[1] :]
        return attention.attend(Heads(query_bthk, key_bsgk, value_bsge), mask_bhts)

    def attend_to_memory(y_btd: jax.Array) -> jax.Array:
        attention, memory = layer.cross_attention, cache["cross_attention"]
        heads = Heads(attention.queries(y_btd), memory.key_bsgk, memory.value_bsge)
        return attention.attend(heads, cross_mask_bhts)

    crosses = "cross_attention" in cache
    return layer.run(x_btd, attend, attend_to_memory if crosses else None), after


def decode_in_steps(
    model: Transformer,
    target: jax.Array,
    memory_bsd: jax.Array | None,
    splits: Sequence[int],
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    steps: Steps = (start_cache, decode_step),
) -> jax.Array:
    """`decode`, in steps of these lengths: the same logits `b t v`, however the target is split.

    steps: how the cache starts and is read. Raises ValueError as `decode`, and unless splits are
    lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    model.inputs("target").embedding.check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    if target_mask_bt is not None:
        kind = str(target_mask_bt.dtype)
        checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    start, step = steps
    cache = start(model, memory_bsd, source_mask_bs, len(target) if memory_bsd is None else None)
    logits = []
    for end, count in zip(itertools.accumulate(splits), splits, strict=True):
        part = slice(end - count, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = step(model, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return jnp.concatenate(logits, axis=1)


def reorder(cache: Cache, row_b: jax.Array) -> Cache:
    """The cache whose row i is what row `row_b[i]` was: beams that live on keep their past."""
    return jax.tree.map(lambda held: held[row_b], cache)


def positions(config: TransformerConfig, read_bt: jax.Array, length: int) -> jax.Array:
    """The positions of the last tokens that have been read."""
    return token_positions(read_bt, config.position_start)[:, -length:]


def length(config: TransformerConfig, read_bt: jax.Array) -> jax.Array:
    """The largest position of what has been read and 1."""
    return positions(config, read_bt, 1).max(initial=0) + 1


def check_steps(model: Transformer) -> None:
    """Raises ValueError on a model that cannot be run in steps, which call what its modules hold.

    It needs a decoder whose modules do in a call what those of this package do, and no mesh of
    explicit axes.
    """
    model.config.need_decoder()
    parts: list[tuple[str, nnx.Module | None, type[nnx.Module]]] = [
        ("model", model, Transformer),
        ("decoder", model.decoder, Decoder),
    ]
    names = ["self_attention"] + ["cross_attention"] * model.config.cross_attention
    for index, layer in enumerate(model.decoder.layers):
        parts.append((f"decoder.layers.{index}", layer, DecoderLayer))
        for name in names:
            attention = getattr(layer, name, None)
            parts.append((f"decoder.layers.{index}.{name}", attention, MultiHeadAttention))
    for name, module, kind in parts:
        own = (getattr(type(module), one, None) is getattr(kind, one) for one in BYPASSED[kind])
        if not isinstance(module, kind) or not all(own):
            needed = f"a {kind.__name__} with its own {', '.join(BYPASSED[kind])}"
            found = type(module).__name__
            raise ValueError(f"decoding in steps needs {name} to be {needed}; got {found}")
    if has_explicit_axes(model.inputs("target").embedding.table[...]):
        raise ValueError(
            "decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); "
            "got a mesh of explicit ones"
        )
