"""A cache of fixed shapes, which steps fill in place: searches and compiled steps have one program
for all lengths of a target.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .. import cache as plain
from .. import inputs
from ..framework import bucket, is_traced
from ..kernels.attention import attend_by_head
from ..layers import DecoderLayer
from ..mask import padding_mask, token_mask
from ..positional_encoding import token_positions
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Mask

__all__ = ["Next", "StaticCache", "decode_in_steps", "decode_step", "next_tokens", "read"]


class Room(NamedTuple):
    """The keys and values that an attention has read, by head, as `attend_by_head` needs them, and
    room for more.
    """

    key_bgsk: jax.Array
    value_bgse: jax.Array

    @classmethod
    def of(cls, pair: plain.KeyValues) -> "Room":
        """Those of a pair whose heads are after their positions."""
        return cls(pair.key_bsgk.swapaxes(1, 2), pair.value_bsge.swapaxes(1, 2))

    def with_room(self, length: int) -> "Room":
        """The same, with room for so many more."""
        more = ((0, 0), (0, 0), (0, length), (0, 0))
        return Room(jnp.pad(self.key_bgsk, more), jnp.pad(self.value_bgse, more))

    def update(
        self, new: "Room", place: jax.Array, mask_bhts: jax.Array, window: int
    ) -> tuple["Room", "Room", jax.Array]:
        """What the new tokens attend to, what is held after them, and the mask of the former.

        The new ones come to the positions from `place` on. A layer with a window holds the last
        positions only: a step of one token, or of one for each beam, takes the places of those that
        it no longer sees. More tokens at once attend to what was held before them, and to
        themselves.
        """
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


class StaticCache(TypedDict):
    """As `cache.Cache`. target_mask_bt: False behind what was read. read: the number of filled
    positions. layers: for each layer the Room of its attentions.
    """

    read: jax.Array
    source_mask_bs: Mask
    target_mask_bt: jax.Array
    layers: list[dict[str, Room]]


class Next(NamedTuple):
    """Where the tokens of a step stand, and which positions of the cache they may attend to.

    local_mask_bhts: the mask in layers with a window. length: of the text, by which frequencies may
    go; by default the largest of these positions and 1.
    """

    position_bt: jax.Array
    mask_bhts: jax.Array
    local_mask_bhts: jax.Array
    length: jax.Array | None = None


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
    for layer, held in zip(model.decoder.layers, start["layers"], strict=True):
        window = layer.self_attention.scores.window
        room = min(length, window * copies) if window else length
        rooms = {name: Room.of(pair) for name, pair in held.items()}
        rooms["self_attention"] = rooms["self_attention"].with_room(room)
        layers.append(rooms)
    return {
        "read": jnp.zeros((), jnp.int32),
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": jnp.pad(start["target_mask_bt"], ((0, 0), (0, length))),
        "layers": layers,
    }


def decode_step(
    model: Transformer, target: jax.Array, cache: StaticCache, target_mask_bt: Mask = None
) -> tuple[jax.Array, StaticCache]:
    """`cache.decode_step`. A concrete cache that lacks room for the tokens raises ValueError."""
    plain.check_steps(model)
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    if target_mask_bt is None:
        target_mask_bt = token_mask(target, model.config.padding_id)
    kind = str(target_mask_bt.dtype)
    checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    cache, ahead = next_tokens(model.config, cache, target_mask_bt)
    return read(nnx.view(model, deterministic=True), target, cache, ahead)


def next_tokens(
    config: TransformerConfig,
    cache: StaticCache,
    target_mask_bt: jax.Array,
    length: jax.Array | None = None,
) -> tuple[StaticCache, Next]:
    """The cache with the mask of a target's next tokens, and where these stand."""
    place, count, room = cache["read"], target_mask_bt.shape[1], cache["target_mask_bt"].shape[1]
    read_bt = jax.lax.dynamic_update_slice_in_dim(
        cache["target_mask_bt"], jnp.asarray(target_mask_bt), place, axis=1
    )
    all_bt = token_positions(read_bt, config.position_start)
    position_bt = jax.lax.dynamic_slice_in_dim(all_bt, place, count, axis=1)
    query_t1 = place + jnp.arange(count)[:, None]
    mask_bhts = padding_mask(read_bt) & (jnp.arange(room) <= query_t1)
    local_mask_bhts = mask_bhts & (query_t1 - jnp.arange(room) < config.window)
    ahead = Next(position_bt, mask_bhts, local_mask_bhts, length)
    return {**cache, "target_mask_bt": read_bt}, ahead


def read(
    model: Transformer, target: jax.Array, cache: StaticCache, ahead: Next
) -> tuple[jax.Array, StaticCache]:
    """Logits `b t v` of more tokens, and the cache after them. model: in evaluation.

    The tokens are the next ones of a target (`next_tokens`), or one for each of many beams.
    """
    place, room = cache["read"], cache["target_mask_bt"].shape[1]
    if not is_traced(place) and (needed := int(place) + target.shape[1]) > room:
        raise ValueError(f"the cache must have room for {needed} tokens; got length={room}")
    x_btd = inputs.embed(model, "target", target, ahead.position_bt, length=room)
    source_mask_bs, layers = cache["source_mask_bs"], list(cache["layers"])
    cross_mask_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)

    def through(
        layer: DecoderLayer, x_btd: jax.Array, rotation: Rotation | None, index: int
    ) -> jax.Array:
        held = cache["layers"][index]

        def attend(y_btd: jax.Array) -> jax.Array:
            attention, scores = layer.self_attention, layer.self_attention.scores
            query_bthk, key_btgk, value_btge = attention.project(y_btd, y_btd, rotation)
            mask_bhts = ahead.local_mask_bhts if scores.window else ahead.mask_bhts
            new = Room.of(plain.KeyValues(key_btgk, value_btge))
            (key_bgsk, value_bgse), after, mask_bhts = held["self_attention"].update(
                new, place, mask_bhts, scores.window
            )
            layers[index] = {**held, "self_attention": after}
            output = attend_by_head(query_bthk, key_bgsk, value_bgse, mask_bhts, scores)
            return attention.output(output)

        def attend_to_memory(y_btd: jax.Array) -> jax.Array:
            attention, (key_bgsk, value_bgse) = layer.cross_attention, held["cross_attention"]
            query_bthk, scores = attention.queries(y_btd), attention.scores
            output = attend_by_head(query_bthk, key_bgsk, value_bgse, cross_mask_bhts, scores)
            return attention.output(output)

        return layer.run(x_btd, attend, attend_to_memory if "cross_attention" in held else None)

    x_btd = model.decoder.walk(x_btd, through, ahead.position_bt, ahead.length)
    return model.head(x_btd), {**cache, "read": place + target.shape[1], "layers": layers}


def decode_in_steps(
    model: Transformer, splits: Sequence[int], compiled: bool = True, **given: Any
) -> jax.Array:
    """`cache.decode_in_steps`. compiled: one program for each length of a step; otherwise the plain
    cache, operation by operation.
    """
    if compiled:
        start = functools.partial(_start_cache, length=bucket(sum(splits)))
        given["steps"] = start, _decode_step
    return plain.decode_in_steps(model, splits=splits, **given)


def reorder(cache: StaticCache, row_b: jax.Array) -> StaticCache:
    """`cache.reorder`, which copies the cache. A beam search does without: its beams are queries of
    one row (`Beams`).
    """
    return jax.tree.map(lambda held: held[row_b] if held.ndim else held, cache)


_start_cache = functools.partial(jax.jit, static_argnames=("batch", "length"))(start_cache)
_decode_step = functools.partial(jax.jit, donate_argnames="cache")(decode_step)
