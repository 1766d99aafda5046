"""Decoding in steps: keys and values are kept, so that a step computes its own tokens only."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from . import inputs
from .attention import MultiHeadAttention
from .framework import bucket, has_explicit_axes, is_traced
from .kernels.attention import attend_by_head
from .layers import DecoderLayer
from .mask import padding_mask, token_mask
from .positional_encoding import token_positions
from .rotary import Rotation
from .stacks import Decoder
from .transformer import Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# source_mask_bs: the memory's token mask. target_mask_bt: the token mask of what was read, False
# behind it. read: the number of filled positions. layers: for each layer the KeyValues of
# self_attention and, with a memory, cross_attention. A layer with a window holds the last positions
# only: new ones take the places of those that no token sees any more.
Cache = Mapping[str, Any]
BYPASSED: dict[type, tuple[str, ...]] = {  # methods that a step does not call
    Transformer: ("__call__", "decode", "embed"),
    Decoder: ("__call__",),
    DecoderLayer: ("__call__",),
    MultiHeadAttention: ("__call__", "attend"),
}


class KeyValues(NamedTuple):
    """The keys and values that an attention has read, by head, as `attend_by_head` needs them; the
    keys are normed and rotated.
    """

    key_bgsk: jax.Array
    value_bgse: jax.Array

    @classmethod
    def of(cls, key_bsgk: jax.Array, value_bsge: jax.Array) -> "KeyValues":
        """Those of `keys_and_values`, whose heads are after their positions."""
        return cls(key_bsgk.swapaxes(1, 2), value_bsge.swapaxes(1, 2))

    def update(self, new: "KeyValues", place: jax.Array) -> "KeyValues":
        """All of them, with the new ones at the positions from `place` on.

        XLA writes in place if nothing else reads the old ones.
        """
        pairs = ((old, part.astype(old.dtype)) for old, part in zip(self, new, strict=True))
        write = jax.lax.dynamic_update_slice_in_dim
        return KeyValues(*(write(*pair, place, axis=2) for pair in pairs))


def start_cache(
    model: Transformer,
    memory_bsd: jax.Array | None,
    source_mask_bs: jax.Array | None = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> Cache:
    """The cache before the first token: keys and values of the memory, and none of the target.

    batch: the number of rows of a decoder-only model, which has no memory. length: the positions of
    the target that there is room for, since the arrays of a program have fixed shapes. copies: of a
    row, whose tokens of one step lie side by side: the beams of a search.
    Raises ValueError on shapes that do not fit, and as `check_steps`.
    """
    check_steps(model)
    model.check_memory(memory_bsd, source_mask_bs)
    rows: Any = batch if memory_bsd is None else memory_bsd.shape[0]
    checks.check_batch(batch, None if memory_bsd is None else rows)
    sizes, embedding = model.config.sizes, model.token_embedding("target")
    dtype = embedding.dtype or embedding.table.dtype
    layers: list[dict[str, Any]] = []
    for layer in model.decoder.layers:
        window = layer.self_attention.scores.window
        room = min(length, window * copies) if window else length
        nothing = (jnp.zeros((rows, sizes["g"], room, sizes[size]), dtype) for size in "ke")
        layers.append({"self_attention": KeyValues(*nothing)})
    if memory_bsd is not None:
        for layer, layer_cache in zip(model.decoder.layers, layers, strict=True):
            pair = layer.cross_attention.keys_and_values(memory_bsd)
            layer_cache["cross_attention"] = KeyValues.of(*pair)
    return {
        "read": jnp.zeros((), jnp.int32),
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": jnp.zeros((rows, length), bool),
        "layers": layers,
    }


def decode_step(
    model: Transformer, target: jax.Array, cache: Cache, target_mask_bt: jax.Array | None = None
) -> tuple[jax.Array, Cache]:
    """Logits `b t v` of the target's next t tokens, as `decode` of all of it, and the cache after.

    Nothing is dropped, whatever the model's mode. Raises ValueError on ids, masks and shapes that
    do not fit, if a concrete cache has no room for the tokens, and as `check_steps`.
    """
    check_steps(model)
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    if target_mask_bt is None:
        target_mask_bt = token_mask(target, model.config.padding_id)
    kind = str(target_mask_bt.dtype)
    checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    model = nnx.view(model, deterministic=True)
    return read(model, target, *next_tokens(model.config, cache, target_mask_bt))


def decode_in_steps(
    model: Transformer,
    target: jax.Array,
    memory_bsd: jax.Array | None,
    splits: Sequence[int],
    source_mask_bs: jax.Array | None = None,
    target_mask_bt: jax.Array | None = None,
    compiled: bool = True,
) -> jax.Array:
    """`decode`, in steps of these lengths: the same logits `b t v`, however the target is split.

    compiled: one program for each length of a step; otherwise operation by operation.
    Raises ValueError as `decode`, and unless splits are lengths of at least 1 that add up to t.
    """
    model.config.need_decoder()
    model.token_embedding("target").check_ids(target)
    checks.check_splits(splits, target.shape)
    checks.check_length(target.shape[1], model.config.max_positions)
    if target_mask_bt is not None:
        kind = str(target_mask_bt.dtype)
        checks.check_token_mask("target mask", target_mask_bt.shape, kind, target.shape[:2])
    start, step = (_start_cache, _decode_step) if compiled else (start_cache, decode_step)
    logits, rows = [], None if memory_bsd is not None else len(target)
    cache = start(model, memory_bsd, source_mask_bs, rows, length=bucket(target.shape[1]))
    for end, length in zip(itertools.accumulate(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = step(model, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return jnp.concatenate(logits, axis=1)


_start_cache = functools.partial(jax.jit, static_argnames=("batch", "length"))(start_cache)
_decode_step = functools.partial(jax.jit, donate_argnames="cache")(decode_step)


def reorder(cache: Cache, row_b: jax.Array) -> Cache:
    """`cache'[i] = cache[row_b[i]]`, of every key, value and mask: a row takes its past with it.

    This copies the cache. `beam_search` does without: its beams are queries of one row (`Beams`).
    """
    of_rows = {name: held for name, held in cache.items() if name != "read"}
    return {**cache, **jax.tree.map(lambda held: held[row_b], of_rows)}


def next_tokens(
    config: TransformerConfig, cache: Cache, target_mask_bt: jax.Array
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """What `read` takes for the next tokens: the cache with their mask, positions, and masks."""
    place, length, room = cache["read"], target_mask_bt.shape[1], cache["target_mask_bt"].shape[1]
    read_bt = jax.lax.dynamic_update_slice_in_dim(
        cache["target_mask_bt"], jnp.asarray(target_mask_bt), place, axis=1
    )
    all_bt = token_positions(read_bt, config.position_start)
    position_bt = jax.lax.dynamic_slice_in_dim(all_bt, place, length, axis=1)
    causal_mask_bhts = (jnp.arange(room) <= place + jnp.arange(length)[:, None])[None, None]
    mask_bhts = padding_mask(read_bt) & causal_mask_bhts
    query_t1 = place + jnp.arange(length)[:, None]
    local_mask_bhts = mask_bhts & (query_t1 - jnp.arange(room) < config.window)
    return {**cache, "target_mask_bt": read_bt}, position_bt, mask_bhts, local_mask_bhts


def read(
    model: Transformer,
    target: jax.Array,
    cache: Cache,
    position_bt: jax.Array,
    self_mask_bhts: jax.Array,
    local_mask_bhts: jax.Array,
    length: Any = None,
) -> tuple[jax.Array, Cache]:
    """Logits `b t v` of more tokens, and the cache after them. model: in evaluation.

    The tokens have any positions and attend to what the mask allows, in layers with a window to
    what the local one allows: they are the next ones of a target, see `next_tokens`, or those of
    many beams. length: of the text, by which frequencies may go; by default the largest of these
    positions and 1.
    """
    place, room = cache["read"], cache["target_mask_bt"].shape[1]
    if not is_traced(place) and (needed := int(place) + target.shape[1]) > room:
        raise ValueError(f"the cache must have room for {needed} tokens; got length={room}")
    x_btd = inputs.embed(model, "target", target, position_bt, length=room)
    source_mask_bs, layers = cache["source_mask_bs"], []
    cross_mask_bhts = None if source_mask_bs is None else padding_mask(source_mask_bs)

    def through(layer: Any, x: jax.Array, rotation: Rotation | None, index: int) -> jax.Array:
        local = layer.self_attention.scores.window > 0
        mask_bhts = local_mask_bhts if local else self_mask_bhts
        x, layer_cache = decoder_layer_step(
            layer, x, cache["layers"][index], place, mask_bhts, cross_mask_bhts, rotation
        )
        layers.append(layer_cache)
        return x

    x_btd = model.decoder.walk(x_btd, through, position_bt, length)
    return model.head(x_btd), {**cache, "read": place + target.shape[1], "layers": layers}


def decoder_layer_step(
    layer: DecoderLayer,
    x_btd: jax.Array,
    cache: Mapping[str, KeyValues],
    place: jax.Array,
    self_mask_bhts: jax.Array,
    cross_mask_bhts: jax.Array | None,
    rotation: Rotation | None,
) -> tuple[jax.Array, dict[str, KeyValues]]:
    """The layer on more tokens, and its cache with their keys and values from `place` on."""
    after = {**cache}

    def attend(y_btd: jax.Array) -> jax.Array:
        attention, held = layer.self_attention, cache["self_attention"]
        query_bthk, *own = attention.project(y_btd, y_btd, rotation)
        new, mask_bhts = KeyValues.of(*own), self_mask_bhts
        if held.key_bgsk.shape[2] == mask_bhts.shape[3]:
            read = after["self_attention"] = held.update(new, place)
        else:
            read, after["self_attention"], mask_bhts = update_in_turn(
                held, new, place, mask_bhts, attention.scores.window
            )
        return attention.output(attend_by_head(query_bthk, *read, mask_bhts, attention.scores))

    def attend_to_memory(y_btd: jax.Array) -> jax.Array:
        attention, memory = layer.cross_attention, cache["cross_attention"]
        query_bthk, scores = attention.queries(y_btd), attention.scores
        return attention.output(attend_by_head(query_bthk, *memory, cross_mask_bhts, scores))

    crosses = "cross_attention" in cache
    return layer.run(x_btd, attend, attend_to_memory if crosses else None), after


def update_in_turn(
    held: KeyValues, new: KeyValues, place: jax.Array, mask_bhts: jax.Array, window: int
) -> tuple[KeyValues, KeyValues, jax.Array]:
    """What the new tokens attend to, what is held after them, and the mask of the former, of a
    layer with a window, which holds the last positions only.

    A step of one token, or of one for each beam, takes the places of those that it no longer sees.
    More tokens at once attend to what was held before them, and to themselves.
    """
    size, count, room = held.key_bgsk.shape[2], new.key_bgsk.shape[2], mask_bhts.shape[3]

    def held_at(last: jax.Array) -> jax.Array:
        """The position that each place holds once `last` is read; negative: it is empty still."""
        return last - (last - room - jnp.arange(size)) % size

    def seen(place_r: jax.Array) -> jax.Array:
        mask_bhtr = jnp.take(mask_bhts, jnp.maximum(place_r, 0), axis=3)
        return mask_bhtr & (place_r >= 0)

    if count == size // window:
        written = held.update(new, (place - room) % size)
        return written, written, seen(held_at(place + count - 1))
    pairs = [(old, part.astype(old.dtype)) for old, part in zip(held, new, strict=True)]
    read = KeyValues(*(jnp.concatenate(pair, axis=2) for pair in pairs))
    own_bhtt = jax.lax.dynamic_slice_in_dim(mask_bhts, place, count, axis=3)
    mask_bhtr = jnp.concatenate([seen(held_at(place - 1)), own_bhtt], axis=3)
    index_r = held_at(place + count - 1) - place
    written = KeyValues(
        *(
            jnp.where((index_r >= 0)[:, None], jnp.take(part, index_r, axis=2, mode="clip"), old)
            for old, part in pairs
        )
    )
    return read, written, mask_bhtr


def check_steps(model: Transformer) -> None:
    """Raises ValueError on a model that cannot be run in steps, which call what its modules hold.

    It needs a decoder whose modules do in a call what those of this package do, and no mesh of
    explicit axes.
    """
    model.config.need_decoder()
    parts: list[tuple[str, Any, type]] = [("model", model, Transformer)]
    parts.append(("decoder", model.decoder, Decoder))
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
    if has_explicit_axes(model.token_embedding("target").table[...]):
        raise ValueError(
            "decoding needs Auto axes, jax.make_mesh(..., axis_types=(AxisType.Auto,) * n); "
            "got a mesh of explicit ones"
        )
