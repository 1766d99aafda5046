"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from . import inputs, mask
from .attention import MultiHeadAttention
from .framework import has_explicit_axes
from .layers import DecoderLayer
from .positional_encoding import token_positions
from .rotary import Rotation
from .stacks import Decoder
from .transformer import Transformer
from .values import Heads, Mask, Text

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

BYPASSED: dict[type[nnx.Module], tuple[str, ...]] = {  # methods that a step does not call
    Transformer: ("__call__", "decode", "embed"),
    Decoder: ("__call__",),
    DecoderLayer: ("__call__",),
    MultiHeadAttention: ("__call__", "attend"),
}
Attend = Callable[[MultiHeadAttention, Heads, Mask], jax.Array]


class KeyValues(NamedTuple):
    """The keys and values that an attention has read; the keys are normed and rotated."""

    key_bsgk: jax.Array
    value_bsge: jax.Array

    def update(self, key_btgk: jax.Array, value_btge: jax.Array) -> "KeyValues":
        """The keys and values read so far, with the next ones appended."""
        key_bsgk = jnp.concatenate([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, jnp.concatenate([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Those of the last tokens, as many as the window has; 0: of all."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(NamedTuple):
    """What a step reads. source_mask_bs: the memory's token mask. target_mask_bt: the token mask of
    what was read. layers: for each layer the KeyValues of self_attention and, with a memory,
    cross_attention.
    """

    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, KeyValues]]


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
    nothing = KeyValues(
        *(jnp.zeros((rows, 0, heads, size), dtype) for size in (config.key_size, config.value_size))
    )
    layers = []
    for layer in model.decoder.layers:
        layers.append({"self_attention": nothing})
        if memory_bsd is not None:
            of_memory = layer.cross_attention.keys_and_values(memory_bsd)
            layers[-1]["cross_attention"] = KeyValues(*of_memory)
    return Cache(source_mask_bs, jnp.zeros((rows, 0), bool), layers)


def decode_step(
    model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: Mask = None
) -> tuple[jax.Array, Cache]:
    """Logits `b t v` of the target's next t tokens, as `decode` of all of it, and the cache after.

    The cache grows with every step, so that each length has a program of its own; a layer with a
    window keeps no more keys than its window. Nothing is dropped, whatever the model's mode. Raises
    ValueError on ids, masks and shapes that do not fit, and as `check_steps`.
    """
    check_steps(model)
    config, past_bt = model.config, cache.target_mask_bt
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    target_mask_bt = Text(target, target_mask_bt).real(config.padding_id)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    read_bt = jnp.concatenate([past_bt, target_mask_bt], axis=1)
    position_bt = positions(config, read_bt, target.shape[1])
    model = nnx.view(model, deterministic=True)
    x_btd = inputs.embed(model, "target", target, position_bt, length=read_bt.shape[1])
    self_mask_bhts = mask.padding_mask(read_bt)
    cross_mask_bhts = mask.padding_mask(cache.source_mask_bs)
    layers = [*cache.layers]

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        length = layers[index]["self_attention"].key_bsgk.shape[1] + target.shape[1]
        masks = self_mask_bhts[..., -length:], cross_mask_bhts
        x_btd, after = decoder_layer_step(layer, x_btd, layers[index], *masks, rotation)
        kept = after["self_attention"].last(layer.self_attention.scores.window)
        layers[index] = after | {"self_attention": kept}
        return x_btd

    logits_btv = model.head(model.decoder.walk(x_btd, through, position_bt))
    return logits_btv, Cache(cache.source_mask_bs, read_bt, layers)


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: jax.Array,
    cache: Mapping[str, Any],
    self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None,
    rotation: Rotation | None = None,
    attend: Attend = lambda attention, heads, mask_bhts: attention.attend(heads, mask_bhts),
) -> tuple[jax.Array, dict[str, Any]]:
    """The layer on the next tokens of a target, and its cache after them.

    cache: self_attention, of the tokens before, whose `update` appends the new; cross_attention, of
    the memory, if there is one. self_mask_bhts: of all tokens that the self-attention reads, those
    of x among them. attend: the attention of queries to what the cache holds.
    """
    after = dict(cache)

    def attend_to_target(y_btd: jax.Array) -> jax.Array:
        query_bthk, *new = layer.self_attention.project(y_btd, y_btd, rotation)
        after["self_attention"] = cache["self_attention"].update(*new)
        heads = Heads(query_bthk, *after["self_attention"])
        return attend(layer.self_attention, heads, self_mask_bhts)

    def attend_to_memory(y_btd: jax.Array) -> jax.Array:
        heads = Heads(layer.cross_attention.queries(y_btd), *cache["cross_attention"])
        return attend(layer.cross_attention, heads, cross_mask_bhts)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layer.run(x_btd, attend_to_target, crossing), after


def decode_in_steps(
    model: Transformer,
    target: jax.Array,
    memory_bsd: jax.Array | None,
    splits: Sequence[int],
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
) -> jax.Array:
    """`decode`, in steps of these lengths: the same logits `b t v`, however the target is split.

    Raises ValueError as `decode`, and unless splits are lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    model.inputs("target").embedding.check_ids(target)
    checks.check_length(target.shape[1], model.config.max_positions)
    batch = len(target) if memory_bsd is None else None
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, batch), []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, cache = decode_step(model, part.ids, cache, part.mask)
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
        path = f"decoder.layers.{index}"
        own = [(f"{path}.{name}", getattr(layer, name, None), MultiHeadAttention) for name in names]
        parts += [(path, layer, DecoderLayer), *own]
    for path, module, kind in parts:
        same = (getattr(type(module), one, None) is getattr(kind, one) for one in BYPASSED[kind])
        if not isinstance(module, kind) or not all(same):
            needed = f"a {kind.__name__} with its own {', '.join(BYPASSED[kind])}"
            found = type(module).__name__
            raise ValueError(f"decoding in steps needs {path} to be {needed}; got {found}")
    if has_explicit_axes(model.inputs("target").embedding.table[...]):
        raise ValueError(
            "decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); "
            "got a mesh of explicit ones"
        )
