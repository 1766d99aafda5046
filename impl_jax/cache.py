"""Decoding in steps: a cache of keys and values, so that a step computes only its own tokens.

The cache grows with every step. Searches and compiled steps have one of fixed shapes instead:
`programs.static_cache`.
"""

from collections.abc import Mapping, Sequence
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


class Next(NamedTuple):
    """The next tokens of a target: their positions, and which tokens they may attend to.

    Only for a static cache: local_mask_bhts, the mask in layers with a window; place, of the first
    token. length: of the text, by default the largest position and 1.
    """

    position_bt: jax.Array
    mask_bhts: jax.Array
    local_mask_bhts: Any = None
    place: Any = None
    length: jax.Array | None = None


class KeyValues(NamedTuple):
    """The keys and values that an attention has read; the keys are normed and rotated."""

    key_bsgk: jax.Array
    value_bsge: jax.Array

    def update(self, key_btgk: jax.Array, value_btge: jax.Array) -> "KeyValues":
        """The keys and values read so far, with the next ones appended."""
        key_bsgk = jnp.concatenate([self.key_bsgk, key_btgk], axis=1)
        return type(self)(key_bsgk, jnp.concatenate([self.value_bsge, value_btge], axis=1))

    def last(self, window: int) -> "KeyValues":
        """Those of the last tokens, as many as the window has; 0: of all."""
        first = max(0, self.key_bsgk.shape[1] - window) if window else 0
        return KeyValues(self.key_bsgk[:, first:], self.value_bsge[:, first:])

    def step(
        self, key_btgk: jax.Array, value_btge: jax.Array, ahead: Next, window: int
    ) -> tuple["KeyValues", "KeyValues", jax.Array]:
        """What the next tokens attend to, what is held after them, and the mask of the former."""
        read = self.update(key_btgk, value_btge)
        return read, read.last(window), ahead.mask_bhts[..., -read.key_bsgk.shape[1] :]

    def attend(
        self, attention: MultiHeadAttention, query_bthk: jax.Array, mask_bhts: Mask
    ) -> jax.Array:
        """The output of an attention of these queries to the keys and values."""
        return attention.attend(Heads(query_bthk, *self), mask_bhts)


class Cache(NamedTuple):
    """What a step reads. source_mask_bs: the memory's token mask. target_mask_bt: the token mask of
    what was read. layers: for each layer the KeyValues of self_attention and, with a memory,
    cross_attention.
    """

    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, KeyValues]]

    def check(self, config: TransformerConfig, count: int) -> None:
        """Raises ValueError if there are fewer positions than the next tokens need."""
        checks.check_length(self.target_mask_bt.shape[1] + count, config.max_positions)

    def next_tokens(self, config: TransformerConfig, mask_bt: jax.Array) -> tuple["Cache", Next]:
        """The cache with the mask of a target's next tokens, and what these are given."""
        read_bt = jnp.concatenate([self.target_mask_bt, mask_bt], axis=1)
        position_bt = positions(config, read_bt, mask_bt.shape[1])
        after = Cache(self.source_mask_bs, read_bt, [*self.layers])
        return after, Next(position_bt, mask.padding_mask(read_bt))


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
    model: Transformer, target: jax.Array, cache: Any, target_mask_bt: Mask = None
) -> tuple[jax.Array, Any]:
    """Logits `b t v` of the target's next t tokens, as `decode` of all of it, and the cache after.

    cache: a `Cache`, whose arrays grow with every step, so that each length has a program of its
    own; or a `StaticCache`, which has one for all. Nothing is dropped, whatever the model's mode.
    Raises ValueError on ids, masks and shapes that do not fit, on more tokens than the cache can
    hold, if that is known, and as `check_steps`.
    """
    check_steps(model)
    checks.check_same_batch(cache=cache.target_mask_bt.shape, target=target.shape)
    cache.check(model.config, target.shape[1])
    if target_mask_bt is None:
        target_mask_bt = mask.token_mask(target, model.config.padding_id)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    cache, ahead = cache.next_tokens(model.config, target_mask_bt)
    return read(nnx.view(model, deterministic=True), target, cache, ahead)


def read(model: Transformer, target: jax.Array, cache: Any, ahead: Next) -> tuple[jax.Array, Any]:
    """Logits `b t v` of tokens, and the cache, whose layers have their keys and values then.

    They are the next tokens of a target, or one for each of many beams. model: in evaluation.
    """
    length, layers = cache.target_mask_bt.shape[1], cache.layers
    x_btd = inputs.embed(model, "target", target, ahead.position_bt, length=length)
    cross_mask_bhts = mask.padding_mask(cache.source_mask_bs)

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        x_btd, layers[index] = decoder_layer_step(
            layer, x_btd, layers[index], ahead, cross_mask_bhts, rotation
        )
        return x_btd

    x_btd = model.decoder.walk(x_btd, through, ahead.position_bt, ahead.length)
    return model.head(x_btd), cache


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: jax.Array,
    cache: Mapping[str, Any],
    ahead: Next,
    cross_mask_bhts: Mask = None,
    rotation: Rotation | None = None,
) -> tuple[jax.Array, dict[str, Any]]:
    """The layer on the next tokens of a target, and its cache after them.

    cache: self_attention, to which the tokens' own keys and values are appended; cross_attention,
    of the memory, if there is one.
    """
    after = dict(cache)

    def attend(y_btd: jax.Array) -> jax.Array:
        attention = layer.self_attention
        query_bthk, key_btgk, value_btge = attention.project(y_btd, y_btd, rotation)
        read, after["self_attention"], mask_bhts = cache["self_attention"].step(
            key_btgk, value_btge, ahead, attention.scores.window
        )
        return read.attend(attention, query_bthk, mask_bhts)

    def attend_to_memory(y_btd: jax.Array) -> jax.Array:
        attention = layer.cross_attention
        return cache["cross_attention"].attend(attention, attention.queries(y_btd), cross_mask_bhts)

    crosses = "cross_attention" in cache
    return layer.run(x_btd, attend, attend_to_memory if crosses else None), after


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


def reorder(cache: Any, row_b: jax.Array) -> Any:
    """The cache whose row i is what row `row_b[i]` was: beams that live on keep their past. It is a
    copy: a beam search does without, since its beams are queries of one row (`Beams`).
    """
    return jax.tree.map(lambda held: held[row_b] if held.ndim else held, cache)


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
