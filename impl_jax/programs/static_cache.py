"""A cache of fixed shapes, which steps fill in place: searches and compiled steps have one program
for all lengths of a target.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from reference_numpy import TransformerConfig

from .. import cache as plain
from ..attention import MultiHeadAttention
from ..cache import Next, decode_step, reorder
from ..framework import is_traced
from ..kernels.attention import attend_by_head
from ..mask import padding_mask
from ..positional_encoding import token_positions
from ..transformer import Transformer
from ..values import Mask

__all__ = ["StaticCache", "decode_step", "reorder", "start_cache"]


class Room(NamedTuple):
    """The keys and values that an attention has read, by head, as `attend_by_head` needs them, and
    room for more.
    """

    key_bgsk: jax.Array
    value_bgse: jax.Array

    @classmethod
    def of(cls, key_bsgk: jax.Array, value_bsge: jax.Array) -> "Room":
        """Keys and values whose heads are after their positions."""
        return cls(key_bsgk.swapaxes(1, 2), value_bsge.swapaxes(1, 2))

    def step(
        self, key_btgk: jax.Array, value_btge: jax.Array, ahead: Next, window: int
    ) -> tuple["Room", "Room", jax.Array]:
        """What the new tokens attend to, what is held after them, and the mask of the former.

        A layer with a window holds the last positions only: a step of one token, or of one for each
        beam, takes the places of those that it no longer sees. More tokens at once attend to what
        was held before them, and to themselves.
        """
        new, place = Room.of(key_btgk, value_btge), ahead.place
        mask_bhts = ahead.local_mask_bhts if window else ahead.mask_bhts
        size, count, room = self.key_bgsk.shape[2], new.key_bgsk.shape[2], mask_bhts.shape[3]
        if size == room:
            written = self.written(new, place)
            return written, written, mask_bhts

        def held_at(last: jax.Array) -> jax.Array:
            """The position that each place holds once `last` is read; negative: it is empty."""
            return last - (last - room - jnp.arange(size)) % size

        def seen(place_r: jax.Array) -> jax.Array:
            mask_bhtr = jnp.take(mask_bhts, jnp.maximum(place_r, 0), axis=3)
            return mask_bhtr & (place_r >= 0)

        if count == size // window:
            written = self.written(new, (place - room) % size)
            return written, written, seen(held_at(place + count - 1))
        new = jax.tree.map(lambda held, part: part.astype(held.dtype), self, new)
        read = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), self, new)
        own_bhtt = jax.lax.dynamic_slice_in_dim(mask_bhts, place, count, axis=3)
        mask_bhtr = jnp.concatenate([seen(held_at(place - 1)), own_bhtt], axis=3)
        index_r = held_at(place + count - 1) - place

        def taken(held: jax.Array, part: jax.Array) -> jax.Array:
            part = jnp.take(part, index_r, axis=2, mode="clip")
            return jnp.where((index_r >= 0)[:, None], part, held)

        return read, jax.tree.map(taken, self, new), mask_bhtr

    def written(self, new: "Room", place: jax.Array) -> "Room":
        """All of them, with the new ones from that place on.

        XLA writes in place if nothing else reads the old ones.
        """
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=place, axis=2)
        return jax.tree.map(lambda held, part: write(held, part.astype(held.dtype)), self, new)

    def attend(
        self, attention: MultiHeadAttention, query_bthk: jax.Array, mask_bhts: Mask
    ) -> jax.Array:
        """The output of an attention of these queries to the keys and values."""
        output_bthe = attend_by_head(query_bthk, *self, mask_bhts, attention.scores)
        return attention.output(output_bthe)


class StaticCache(NamedTuple):
    """As `cache.Cache`. target_mask_bt: False behind what was read. layers: for each layer the Room
    of its attentions. read: the number of filled positions.
    """

    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, Room]]
    read: jax.Array

    def check(self, config: TransformerConfig, count: int) -> None:
        """Raises ValueError if the cache, concrete, lacks room for the next tokens."""
        room = self.target_mask_bt.shape[1]
        if not is_traced(self.read) and (needed := int(self.read) + count) > room:
            raise ValueError(f"the cache must have room for {needed} tokens; got length={room}")

    def next_tokens(
        self, config: TransformerConfig, mask_bt: jax.Array, length: jax.Array | None = None
    ) -> tuple["StaticCache", Next]:
        """The cache with the mask of a target's next tokens, and what these are given."""
        place, count, room = self.read, mask_bt.shape[1], self.target_mask_bt.shape[1]
        read_bt = jax.lax.dynamic_update_slice_in_dim(
            self.target_mask_bt, jnp.asarray(mask_bt), place, axis=1
        )
        all_bt = token_positions(read_bt, config.position_start)
        position_bt = jax.lax.dynamic_slice_in_dim(all_bt, place, count, axis=1)
        query_t1 = place + jnp.arange(count)[:, None]
        mask_bhts = padding_mask(read_bt) & (jnp.arange(room) <= query_t1)
        local_mask_bhts = mask_bhts & (query_t1 - jnp.arange(room) < config.window)
        after = StaticCache(self.source_mask_bs, read_bt, [*self.layers], place + count)
        return after, Next(position_bt, mask_bhts, local_mask_bhts, place, length)


def start_cache(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: Mask = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> StaticCache:
    """`cache.start_cache`, with room for so many positions of the target.

    copies: of a row, whose tokens of one step lie side by side: the beams of a search.
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
