"""Incremental decoding: a cache of keys and values, so that a step computes only its own tokens."""

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

BYPASSED: dict[type[nnx.Module], tuple[str, ...]] = {  # methods that a step bypasses
    Transformer: ("__call__", "decode", "embed"),
    Decoder: ("__call__",),
    DecoderLayer: ("__call__",),
    MultiHeadAttention: ("__call__", "attend"),
}
Attend = Callable[[MultiHeadAttention, Heads, Mask], jax.Array]


class KeyValues(NamedTuple):
    """The keys and values that an attention layer has read; the keys are normalized and rotated."""

    key_bsgk: jax.Array
    value_bsge: jax.Array

    def update(self, key_btgk: jax.Array, value_btge: jax.Array) -> "KeyValues":
        """Returns the keys and values read so far, with the next ones appended."""
        key_bsgk = jnp.concatenate([self.key_bsgk, key_btgk], axis=1)
        return KeyValues(key_bsgk, jnp.concatenate([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Returns the keys and values of the last `window` tokens; 0: of all tokens."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])


class Cache(NamedTuple):
    """The state of a decoder. source_mask_bs: token mask of the memory. target_mask_bt: mask of the
    tokens read so far. layers: for each layer, the KeyValues of self_attention and, if there is a
    memory, of cross_attention.
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
    """Returns the cache before the first token: keys and values of the memory, none of the target.

    memory_bsd: None for a decoder-only model, which needs batch, the number of rows. Raises
    ValueError if the shapes do not match, and as `check_steps` does.
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
    """Returns the logits `b t v` of the next t target tokens, and the updated cache.

    The logits equal the same rows of `decode` on the whole target. The cache grows with every step,
    so each length compiles its own program; a layer with a window keeps only the keys of its
    window. Dropout is off in every mode. Raises ValueError on invalid ids, masks or shapes, and as
    `check_steps` does.
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
    """Runs a decoder layer on the next target tokens; returns its output and updated cache.

    cache: self_attention, whose `update` appends the keys and values of x, and cross_attention if
    there is a memory. self_mask_bhts: covers all tokens that the self-attention reads, including
    those of x. attend: computes attention over the cached keys and values.
    """
    after = dict(cache)

    def attend_to_target(y_btd: jax.Array) -> jax.Array:
        heads = layer.self_attention.project(y_btd, y_btd, rotation)
        after["self_attention"] = cache["self_attention"].update(heads.key_bsgk, heads.value_bsge)
        key_bsgk, value_bsge = after["self_attention"]
        heads = Heads(heads.query_bthk, key_bsgk, value_bsge, heads.sink_h)
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
    """Computes `decode` in steps of the lengths `splits`: the same logits `b t v` for every split,
    unless frequencies depend on the length (ROTARY).

    Raises ValueError as `decode` does, and unless splits are lengths of at least 1 that add up to
    t.
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
    """Returns the cache whose row i is row `row_b[i]` of the given one: surviving beams keep their
    past.
    """
    return jax.tree.map(lambda held: held[row_b], cache)


def positions(config: TransformerConfig, read_bt: jax.Array, length: int) -> jax.Array:
    """Returns the positions of the last `length` tokens read."""
    return token_positions(read_bt, config.position_start)[:, -length:]


def length(config: TransformerConfig, read_bt: jax.Array) -> jax.Array:
    """Returns the largest position read so far plus 1; 0 before the first token."""
    return positions(config, read_bt, 1).max(initial=0) + 1


def check_steps(model: Transformer) -> None:
    """Raises ValueError if steps would bypass a method that a module overrides.

    Steps call the modules' parts directly. They need a decoder whose modules keep the methods of
    this package, and no mesh with explicit axes.
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
            raise ValueError(f"incremental decoding needs {path} to be {needed}; got {found}")
    if has_explicit_axes(model.inputs("target").embedding.table[...]):
        raise ValueError(
            "decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); "
            "got a mesh with explicit axes"
        )
