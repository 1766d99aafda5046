"""A cache of fixed shapes that steps fill in place: searches and compiled steps use one program for
all target lengths.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import checks

from .. import cache as plain
from .. import mask
from ..attention import MultiHeadAttention, beside_sink
from ..framework import is_traced
from ..inputs import embed
from ..kernels.attention import attend_by_head
from ..layers import DecoderLayer
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads, Mask, Text

__all__ = ["StaticCache", "decode_step", "forward_step", "read", "reorder", "start_cache"]


class Room(NamedTuple):
    """Keys and values stored by head, as `attend_by_head` needs them, with room for more."""

    key_bgsk: jax.Array
    value_bgse: jax.Array

    @classmethod
    def of(cls, key_bsgk: jax.Array, value_bsge: jax.Array) -> "Room":
        """Converts keys and values stored by position."""
        return cls(key_bsgk.swapaxes(1, 2), value_bsge.swapaxes(1, 2))


class StaticCache(NamedTuple):
    """Like `cache.Cache`. target_mask_bt: False beyond what was read. layers: for each layer, the
    Room of its attentions. read: the number of filled positions.
    """

    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, Room]]
    read: jax.Array


def start_cache(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: Mask = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> StaticCache:
    """Returns `cache.start_cache` with room for `length` target positions.

    copies: of each row, whose tokens of one step are adjacent: the beams of a search.
    """
    start, layers = plain.start_cache(model, memory_bsd, source_mask_bs, batch), []
    for layer, held in zip(model.decoder.layers, start.layers, strict=True):
        window = layer.self_attention.scores.window
        room = (0, 0), (0, 0), (0, min(length, window * copies) if window else length), (0, 0)
        layers.append({name: Room.of(*pair) for name, pair in held.items()})
        own = layers[-1]["self_attention"]
        layers[-1]["self_attention"] = Room(*(jnp.pad(x, room) for x in own))
    target_mask_bt = jnp.pad(start.target_mask_bt, ((0, 0), (0, length)))
    return StaticCache(source_mask_bs, target_mask_bt, layers, jnp.zeros((), jnp.int32))


def decode_step(
    model: Transformer, target: jax.Array, cache: StaticCache, target_mask_bt: Mask = None
) -> tuple[jax.Array, StaticCache]:
    """Computes `cache.decode_step`; one program serves all target lengths.

    Also raises ValueError if a concrete cache has no room for the tokens.
    """
    plain.check_steps(model)
    room, count = cache.target_mask_bt.shape[1], target.shape[1]
    checks.check_same_batch(cache=cache.target_mask_bt.shape, target=target.shape)
    if not is_traced(cache.read) and (needed := int(cache.read) + count) > room:
        raise ValueError(f"the cache has room for {room} tokens; got {needed}")
    target_mask_bt = Text(target, target_mask_bt).real(model.config.padding_id)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    return forward_step(nnx.view(model, deterministic=True), target, cache, target_mask_bt)


def forward_step(
    model: Transformer,
    target: jax.Array,
    cache: StaticCache,
    target_mask_bt: jax.Array,
    length: jax.Array | None = None,
) -> tuple[jax.Array, StaticCache]:
    """Computes `decode_step` of checked arguments. model: in eval mode. length: of the text,
    default its largest position plus 1.
    """
    config, count, room = model.config, target.shape[1], cache.target_mask_bt.shape[1]
    read_bt = jax.lax.dynamic_update_slice_in_dim(
        cache.target_mask_bt, jnp.asarray(target_mask_bt), cache.read, axis=1
    )
    all_bt = token_positions(read_bt, config.position_start)
    position_bt = jax.lax.dynamic_slice_in_dim(all_bt, cache.read, count, axis=1)
    query_t1 = cache.read + jnp.arange(count)[:, None]
    mask_bhts = mask.padding_mask(read_bt) & (jnp.arange(room) <= query_t1)
    near_ts = query_t1 - jnp.arange(room) < config.window
    masks = {config.window: mask_bhts & near_ts, 0: mask_bhts}
    return read(model, target, cache._replace(target_mask_bt=read_bt), position_bt, masks, length)


def read(
    model: Transformer,
    target: jax.Array,
    cache: StaticCache,
    position_bt: jax.Array,
    masks: Mapping[int, jax.Array],
    length: jax.Array | None = None,
    end: jax.Array | None = None,
) -> tuple[jax.Array, StaticCache]:
    """Returns logits `b t v` of tokens, and the cache with their keys and values.

    The tokens are the next of a target, or one for each of many beams. masks: by layer window, the
    cache positions that they may attend to. model, length: see `forward_step`. end: the number of
    positions that the cache then counts, default all; the rest is filler.
    """
    count, room = target.shape[1], cache.target_mask_bt.shape[1]
    end = cache.read + count if end is None else end
    x_btd = embed(model, "target", target, position_bt, length=room)
    cross_mask_bhts, layers = mask.padding_mask(cache.source_mask_bs), [*cache.layers]

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        window, own = layer.self_attention.scores.window, layers[index]["self_attention"]
        self_mask_bhts, start, new_s = _ring(masks[window], own, window, cache.read, count, end)
        place = _Place(own, start, new_s)
        held = layers[index] | {"self_attention": place}
        x_btd, after = plain.decoder_layer_step(
            layer, x_btd, held, self_mask_bhts, cross_mask_bhts, rotation, _attend
        )
        layers[index] = after | {"self_attention": place.held(after["self_attention"])}
        return x_btd

    x_btd = model.decoder.walk(x_btd, through, position_bt, length)
    return model.head(x_btd), cache._replace(layers=layers, read=end)


def _attend(attention: MultiHeadAttention, heads: Heads, mask_bhts: Mask) -> jax.Array:
    """Applies `attention.attend` to keys and values of a Room."""
    query_bthk, key_bgsk, value_bgse, sink_h = heads
    given = query_bthk, key_bgsk, value_bgse, mask_bhts, attention.scores
    output_bthe = attend_by_head(*given, functools.partial(beside_sink, sink_h=sink_h))
    return attention.output(output_bthe)


class _Place(NamedTuple):
    """Where the next tokens go in a layer's room: from the position `start` on.

    new_s: if more tokens enter a window than leave it, the new token of each place, or negative;
    None: the tokens are written before they attend.
    """

    room: Room
    start: jax.Array
    new_s: jax.Array | None

    def update(self, key_btgk: jax.Array, value_btge: jax.Array) -> Room:
        """Returns the keys and values that the next tokens attend to, including their own."""
        new = Room.of(key_btgk, value_btge)
        new = jax.tree.map(lambda held, part: part.astype(held.dtype), self.room, new)
        if self.new_s is not None:
            return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), self.room, new)
        # XLA writes in place if nothing else reads the old arrays.
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=2)
        return jax.tree.map(lambda held, part: write(held, part, self.start), self.room, new)

    def held(self, read: Room) -> Room:
        """Returns the room after the next tokens, which attended to all of `read`."""
        if (new_s := self.new_s) is None:
            return read

        def taken(held: jax.Array, read: jax.Array) -> jax.Array:
            part = jnp.take(read[:, :, held.shape[2] :], new_s, axis=2, mode="clip")
            return jnp.where((new_s >= 0)[:, None], part, held)

        return jax.tree.map(taken, self.room, read)


def _ring(
    mask_bhts: jax.Array, held: Room, window: int, read: jax.Array, count: int, end: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the mask of all that a layer's next tokens attend to, and their `start` and `new_s`.

    A layer with a window keeps only the last positions: a step of one token, or of one per beam,
    overwrites positions that left the window. More tokens at once attend to what was kept before
    them, and to themselves. mask_bhts: of all cache positions. end: see `read`.
    """
    room, size = mask_bhts.shape[3], held.key_bgsk.shape[2]
    if size == room:
        return mask_bhts, read, None

    def held_at(last: jax.Array) -> jax.Array:
        """Returns the position in each place once `last` is read; negative: empty."""
        return last - (last - room - jnp.arange(size)) % size

    def seen(position_s: jax.Array) -> jax.Array:
        seen_bhts = jnp.take(mask_bhts, jnp.maximum(position_s, 0), axis=3)
        return seen_bhts & (position_s >= 0)

    position_s = held_at(end - 1)
    if count == size // window:
        return seen(position_s), (read - room) % size, None
    own_bhtt = jax.lax.dynamic_slice_in_dim(mask_bhts, read, count, axis=3)
    seen_bhts = jnp.concatenate([seen(held_at(read - 1)), own_bhtt], axis=3)
    return seen_bhts, read, position_s - read


def reorder(cache: StaticCache, row_b: jax.Array) -> StaticCache:
    """Computes `cache.reorder`, a copy; beam search avoids it, since its beams are queries of one
    row (`Beams`).
    """
    return jax.tree.map(lambda held: held[row_b] if held.ndim else held, cache)
