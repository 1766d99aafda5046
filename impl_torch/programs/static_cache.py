"""A cache of fixed length that steps fill in place.

Searches use it, and compiled and exported steps take and return tensors of constant sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import checks
from reference_numpy.config import LayerKind
from reference_numpy.scores import Scores

from .. import cache as plain
from .. import mask, rotary
from ..cache import KeyValues
from ..embedding import check_ids
from ..inputs import embed, encoding_table
from ..layers import Layer
from ..rotary import Rotation, Turning
from ..transformer import Transformer
from ..values import Text

__all__ = [
    "StaticCache",
    "decode_in_steps",
    "decode_step",
    "forward_step",
    "reorder",
    "start_cache",
]


class Room(NamedTuple):
    """Room for the keys and values of a target, with w copies per row."""

    key_bswgk: Tensor
    value_bswge: Tensor


class StaticCache(TypedDict):
    """Everything that steps have read, with room for more.

    source_mask_bs, layers: as in `cache.Cache`, with a `Room` for the self-attention.
    target_mask_bwtw: target_mask_bt for w copies of a row: mask[b, i, t, j] tells whether copy i
    may attend to what copy j wrote at step t. read: the number of tokens read. leading_b: padding
    before the first real token. encoding_pd: the sinusoidal encoding of every position, or None.
    rotations: the rotation of every position, `p j`, by the layer properties it depends on, unless
    it depends on the length. windows: how many tokens each layer keeps, token t in place t %
    window; 0: all.
    """

    source_mask_bs: Tensor | None
    target_mask_bwtw: Tensor
    layers: list[dict[str, Any]]
    read: int
    leading_b: Tensor
    encoding_pd: Tensor | None
    rotations: dict[Turning, Rotation]
    windows: tuple[int, ...]


def start_cache(
    model: Transformer,
    memory_bsd: Tensor | None,
    source_mask_bs: Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> StaticCache:
    """Returns the cache before the first token, with room for `length` tokens.

    copies: adjacent target rows that share a row of the memory; they can swap places without
    copying keys and values. batch: without the copies. Other arguments and errors match
    `cache.start_cache`.
    """
    config, kept = model.config, plain.start_cache(model, memory_bsd, source_mask_bs, batch)
    kinds = [config.layer_kind(index) for index in range(len(kept["layers"]))]
    windows = tuple(kind.window if kind.window < length else 0 for kind in kinds)
    nothing_bsgk = kept["layers"][0]["self_attention"].key_bsgk
    rows, dtype, device = len(nothing_bsgk), nothing_bsgk.dtype, nothing_bsgk.device
    layers = []
    for layer, window in zip(kept["layers"], windows, strict=True):
        # Zeros: places of a window are read before they are written, with weight 0.
        pair, shape = layer["self_attention"], (rows, window or length, copies)
        new = [x.new_zeros if window else x.new_empty for x in pair]
        room = Room(*(make((*shape, *x.shape[2:])) for make, x in zip(new, pair, strict=True)))
        layers.append({**layer, "self_attention": room})
    place_p = torch.arange(length, device=device)
    return {
        "source_mask_bs": source_mask_bs,
        "target_mask_bwtw": torch.empty(
            rows, copies, length, copies, dtype=torch.bool, device=device
        ),
        "layers": layers,
        "read": 0,
        "leading_b": torch.zeros(rows * copies, dtype=torch.int64, device=device),
        "encoding_pd": encoding_table(config, length, dtype, device),
        "rotations": {
            rotary.turning(kind): rotary.rotation(config, kind, place_p, dtype)
            for kind in kinds
            if kind.rotary and not kind.scaling.by_length
        },
        "windows": windows,
    }


Step = Callable[..., tuple[Tensor, StaticCache]]


def forward_step(
    model: Transformer,
    target: Tensor,
    cache: StaticCache,
    target_mask_bt: Tensor | None = None,
    last: bool = False,
) -> tuple[Tensor, StaticCache]:
    """Computes `decode_step` of checked arguments. last: only the logits of the last token."""
    config, read, end = model.config, cache["read"], cache["read"] + target.shape[1]
    mask_bt = target_mask_bt
    if mask_bt is None:
        mask_bt = mask.token_mask(target, config.padding_id)
    leading_b, position_bt = cache["leading_b"], torch.arange(read, end, device=target.device)[None]
    if config.position_start == "first_token":
        leading_b = torch.where(
            leading_b == read, read + (mask_bt.cumsum(dim=1) == 0).sum(dim=1), leading_b
        )
        position_bt = (position_bt - leading_b[:, None]).clamp(min=0)
    x_btd = embed(model, "target", target, position_bt, encoding_pd=cache["encoding_pd"])
    source_mask_bs = cache["source_mask_bs"]
    cross_bias_bhts = (
        None if source_mask_bs is None else _bias(source_mask_bs[:, None, None], x_btd.dtype)
    )
    self_bias_bhts = _bias(_self_mask(cache, mask_bt), x_btd.dtype)
    # Copies of a row share its keys, which `reorder` never moves: their queries are adjacent,
    # `b (w t) d`, and the bias hides keys outside a copy's own past.
    shape = self_bias_bhts.shape[0], self_bias_bhts.shape[2]
    x_btd = x_btd.reshape((*shape, x_btd.shape[2]))
    of_window: dict[int, Any] = {0: (self_bias_bhts, None, None)}
    for window in {*cache["windows"]} - {0}:
        of_window[window] = _ring(cache, window, end, x_btd.dtype)

    def turned(kind: LayerKind) -> Rotation:
        table = cache["rotations"].get(rotary.turning(kind))
        place_bt = position_bt.expand(mask_bt.shape).reshape(shape)
        if table is None:
            return rotary.rotation(config, kind, place_bt, x_btd.dtype)
        return Rotation(*(F.embedding(place_bt, part_pj) for part_pj in table))

    def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        kept, own = cache["layers"][index], layer.self_attention.scores
        bias_bhts, *places = of_window[cache["windows"][index]]
        held = {**kept, "self_attention": _Place(kept["self_attention"], read, *places)}
        scores = Scores(own.scale, own.cap)  # the bias includes causality and window
        masks = bias_bhts, cross_bias_bhts
        return plain.decoder_layer_step(layer, x_btd, held, scores, *masks, rotation)[0]

    rotations = rotary.by_layer(config, len(cache["layers"]), turned)
    x_btd = model.decoder.walk(x_btd, through, turned=rotations)
    x_btd = x_btd.reshape((*mask_bt.shape, x_btd.shape[2]))
    logits_btv = model.logits(x_btd[:, -1:] if last else x_btd)
    return logits_btv, {**cache, "read": end, "leading_b": leading_b}


def decode_step(
    model: Transformer,
    target: Tensor,
    cache: StaticCache,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> tuple[Tensor, StaticCache]:
    """Computes `cache.decode_step`; the old and the new cache share tensors.

    step: a program of `forward_step`, if any. Also raises ValueError if the cache has no room for
    the tokens.
    """
    end, length = cache["read"] + target.shape[1], cache["target_mask_bwtw"].shape[2]
    checks.check_same_batch(cache=cache["leading_b"].shape, target=target.shape)
    checks.check_length(end, model.config.max_positions)
    check_ids((target, model.config.target_vocabulary))
    mask.check("target mask", target_mask_bt, target.shape[:2])
    if end > length:
        raise ValueError(f"the cache has room for {length} tokens; got {end}")
    return (step or forward_step)(model, target, cache, target_mask_bt)


class _Place(NamedTuple):
    """Where the next tokens go in a layer's room: after the `read` tokens before them, or in a
    window in place of the oldest.

    earlier_n: in a window, the places of earlier tokens, in order; None for a single new token,
    which reads all places. last_n: the places of the last new tokens.
    """

    room: Room
    read: int
    earlier_n: Tensor | None
    last_n: Tensor | None

    def update(self, key_btgk: Tensor, value_btge: Tensor) -> KeyValues:
        """Writes the next keys and values, in place; returns all keys and values to attend to."""
        return KeyValues(*map(self._written, self.room, (key_btgk, value_btge)))

    def _written(self, kept_bswgk: Tensor, new_btgk: Tensor) -> Tensor:
        # The copies of each token are adjacent.
        new_btwgk = new_btgk.unflatten(1, (kept_bswgk.shape[2], -1)).transpose(1, 2)
        if self.last_n is None:
            end = self.read + new_btwgk.shape[1]
            kept_bswgk[:, self.read : end] = new_btwgk
            return kept_bswgk[:, :end].flatten(1, 2)
        read_bswgk = kept_bswgk
        if self.earlier_n is not None:
            read_bswgk = torch.cat([kept_bswgk[:, self.earlier_n], new_btwgk], dim=1)
        kept_bswgk.index_copy_(1, self.last_n, new_btwgk[:, -len(self.last_n) :])
        return read_bswgk.flatten(1, 2)


def _ring(
    cache: StaticCache, window: int, end: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Returns a window's bias for tokens with a written mask, and their earlier_n and last_n."""
    read, kept_bwtw = cache["read"], cache["target_mask_bwtw"]
    query_t = torch.arange(read, end, device=kept_bwtw.device)
    if end - read == 1:
        earlier_n, last_n = None, query_t % window
        place_s = torch.arange(window, device=kept_bwtw.device)
        token_s = read - (read - place_s) % window  # the last in each place, with the new one
    else:
        token_s = torch.arange(max(read - window, 0), end, device=kept_bwtw.device)
        earlier_n, last_n = token_s[: read - end] % window, query_t[-window:] % window
    near_ts = (token_s <= query_t[:, None]) & (token_s > query_t[:, None] - window) & (token_s >= 0)
    mask_bwtsw = kept_bwtw[:, :, None, token_s.clamp(min=0)] & near_ts[:, :, None]
    return _bias(mask_bwtsw, dtype), earlier_n, last_n


def _self_mask(cache: StaticCache, mask_bt: Tensor) -> Tensor:
    """Writes which of the next tokens are real into the cache; returns their mask `b w t s w`: a
    copy sees its own past and none of the next tokens after itself.
    """
    kept_bwtw, read, length = cache["target_mask_bwtw"], cache["read"], mask_bt.shape[1]
    (rows, copies), end = kept_bwtw.shape[:2], read + length
    own_ww = torch.eye(copies, dtype=torch.bool, device=mask_bt.device)[:, None]
    kept_bwtw[:, :, read:end] = mask_bt.unflatten(0, (rows, copies))[..., None] & own_ww
    mask_bwtsw = kept_bwtw[:, :, None, :end].expand(-1, -1, length, -1, -1)
    if length == 1:
        return mask_bwtsw
    return mask_bwtsw & mask.causal_mask(length, end, mask_bt.device)[0, 0, :, :, None]


def _bias(mask_bwtsw: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns 0 for visible keys and -inf for others, `b 1 (w t) (s w)`, once per step; from a
    mask, the kernel would compute this in every layer.
    """
    mask_bhts = mask_bwtsw.flatten(3).flatten(1, 2)[:, None]
    return torch.where(mask_bhts, 0.0, -torch.inf).to(dtype)


def decode_in_steps(
    model: Transformer,
    target: Tensor,
    memory_bsd: Tensor | None,
    splits: Sequence[int],
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    step: Step = forward_step,
) -> Tensor:
    """Computes `cache.decode_in_steps` with room for the whole target. step: see `decode_step`."""
    checks.check_splits(splits, target.shape)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    batch = len(target) if memory_bsd is None else None
    cache = start_cache(model, memory_bsd, source_mask_bs, batch, length=target.shape[1])
    logits = []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, cache = decode_step(model, part.ids, cache, part.mask, step)
        logits.append(logits_btv)
    return torch.cat(logits, dim=1)


def reorder(cache: StaticCache, row_b: Tensor) -> StaticCache:
    """Computes `cache.reorder`. Copies of a row may only swap among themselves, which leaves their
    keys and values in place.
    """
    target_mask_bwtw = cache["target_mask_bwtw"]
    shape = target_mask_bwtw.shape[:2]
    moved: StaticCache = {
        **cache,
        "target_mask_bwtw": target_mask_bwtw.flatten(0, 1)[row_b].unflatten(0, shape),
        "leading_b": cache["leading_b"][row_b],
    }
    if shape[1] > 1:
        return moved
    if (source_mask_bs := cache["source_mask_bs"]) is not None:
        moved["source_mask_bs"] = source_mask_bs[row_b]
    moved["layers"] = [
        {name: type(pair)(*(x[row_b] for x in pair)) for name, pair in layer.items()}
        for layer in cache["layers"]
    ]
    return moved
