"""Decoding in steps: the keys and values of tokens that have been read are kept, so that a step
computes only its own tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import LayerKind
from reference_numpy.scores import Scores

from . import mask, positional_encoding, rotary
from .attention import MultiHeadAttention
from .embedding import check_ids
from .framework import is_changed
from .inputs import embed
from .layers import DecoderLayer, Layer
from .rotary import Rotation
from .stacks import Decoder
from .transformer import Transformer
from .values import Heads

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# source_mask_bs, and layers, the keys and values of each layer's attentions: as in the reference.
# target_mask_bwtw: target_mask_bt for w copies of a row: mask[b, i, t, j] says whether copy i may
# attend to what copy j wrote at step t. read: how many tokens have been read. leading_b: padding
# before the first real token. encoding_pd: the sinusoidal encoding of every position; None if
# positions are others. rotations: the rotation of every position, `p j`, by what of a kind of layer
# it depends on, unless that is the length. windows: how many tokens each layer keeps, token t in
# place t % window; 0: all.
Cache = Mapping[str, Any]
Step = Callable[..., tuple[Tensor, Cache]]


class KeyValues(NamedTuple):
    """Keys and values that are normalised and rotated: those of the memory, `b s g k` and `b s g
    e`, or room for those of a target of which each row has w copies, `b s w g k` and `b s w g e`.
    """

    key: Tensor
    value: Tensor

    def update(
        self, key_btgk: Tensor, value_btge: Tensor, read: int, ring: "_Ring | None"
    ) -> tuple[Tensor, Tensor]:
        """Writes the next keys and values, in place, behind those of the `read` tokens before, or
        in a window in place of the oldest; returns all that are read, `b s g k` and `b s g e`.
        """
        key_bsgk = _written(self.key, key_btgk, read, ring)
        return key_bsgk, _written(self.value, value_btge, read, ring)


def start_cache(
    model: Transformer,
    memory_bsd: Tensor | None,
    source_mask_bs: Tensor | None = None,
    batch: int | None = None,
    *,
    length: int,
    copies: int = 1,
) -> Cache:
    """Returns the cache before the first token: keys and values of the memory, and room for
    `length` tokens, which steps fill in place.

    memory_bsd: None in a decoder-only model, which needs batch, the number of rows without their
    copies. copies: how many neighbouring rows of the target share a row of the memory; they can
    change places without a copy of keys and values. Raises ValueError also on a model in training,
    and if a part that steps do not call as a whole has a hook or another class.
    """
    model.config.need_decoder()
    _check_steps(model)
    if model.training:
        raise ValueError("decoding in steps needs a model in evaluation; got one in training")
    config = model.config
    shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
    checks.check_batch(batch, None if shape is None else shape[0])
    if shape is not None:
        mask.check("source mask", source_mask_bs, shape[:2])
    kept: Any = next(model.parameters()) if memory_bsd is None else memory_bsd
    rows: Any = batch if memory_bsd is None else len(memory_bsd)
    kinds = [config.layer_kind(index) for index in range(len(model.decoder.layers))]
    windows = tuple(kind.window if kind.window < length else 0 for kind in kinds)
    layers = []
    for layer, window in zip(model.decoder.layers, windows, strict=True):
        # Zeros: a window's places are read before they are written, with weight 0.
        empty = kept.new_zeros if window else kept.new_empty
        room = rows, window or length, copies, config.key_value_heads
        own = KeyValues(empty(*room, config.key_size), empty(*room, config.value_size))
        layers.append({"self_attention": own})
        if memory_bsd is not None:
            memory = layer.cross_attention.keys_and_values(memory_bsd)
            layers[-1]["cross_attention"] = KeyValues(*memory)
    encoding_pd, place_p = None, torch.arange(length, device=kept.device)
    if config.positions == "sinusoidal":
        encoding_pd = positional_encoding.positional_encoding(
            place_p, config.model_width, kept.dtype, config.sinusoid_layout
        )
    return {
        "source_mask_bs": source_mask_bs,
        "target_mask_bwtw": torch.empty(
            rows, copies, length, copies, dtype=torch.bool, device=kept.device
        ),
        "layers": layers,
        "read": 0,
        "leading_b": torch.zeros(rows * copies, dtype=torch.int64, device=kept.device),
        "encoding_pd": encoding_pd,
        "rotations": {
            rotary.turning(kind): rotary.rotation(config, kind, place_p, kept.dtype)
            for kind in kinds
            if kind.rotary and not kind.scaling.by_length
        },
        "windows": windows,
    }


def decode_step(
    model: Transformer,
    target: Tensor,
    cache: Cache,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> tuple[Tensor, Cache]:
    """Returns the logits `b t v` of the next t tokens, equal to those rows of `decode` of the whole
    target, and the cache after them.

    The given cache and the returned one share their tensors. step: a graph of `forward_step`, if
    there is one.
    """
    length = cache["target_mask_bwtw"].shape[2]
    checks.check_same_batch(cache=cache["leading_b"].shape, target=target.shape)
    checks.check_length(cache["read"] + target.shape[1], model.config.max_positions)
    check_ids((target, model.config.target_vocabulary))
    mask.check("target mask", target_mask_bt, target.shape[:2])
    if cache["read"] + target.shape[1] > length:
        raise ValueError(
            f"the cache has room for {length} tokens; got {cache['read'] + target.shape[1]}"
        )
    return (step or forward_step)(model, target, cache, target_mask_bt)


def forward_step(
    model: Transformer,
    target: Tensor,
    cache: Cache,
    target_mask_bt: Tensor | None = None,
    last: bool = False,
) -> tuple[Tensor, Cache]:
    """Computes `decode_step` of arguments that are checked. last: only the logits after the last
    token.
    """
    read, end = cache["read"], cache["read"] + target.shape[1]
    mask_bt = target_mask_bt
    if mask_bt is None:
        mask_bt = mask.token_mask(target, model.config.padding_id)
    leading_b, position_bt = cache["leading_b"], torch.arange(read, end, device=target.device)[None]
    if model.config.position_start == "first_token":
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
    # The copies of a row share its keys, which `reorder` never moves: their queries lie side by
    # side, `b (w t) d`, and the bias hides the keys that are not of a copy's own past.
    x_btd = x_btd.reshape(self_bias_bhts.shape[0], self_bias_bhts.shape[2], x_btd.shape[2])
    turned = _rotations(model.config, cache, position_bt, target, x_btd)
    rings = {window: _ring(cache, window, end, x_btd.dtype) for window in {*cache["windows"]} - {0}}

    def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        ring = rings.get(cache["windows"][index])
        mask_bhts = self_bias_bhts if ring is None else ring.bias_bhts
        attention, kept = layer.self_attention, cache["layers"][index]
        # The mask has causality and window in it.
        scores = Scores(attention.scores.scale, attention.scores.cap)

        def attend(y_btd: Tensor) -> Tensor:
            query_bthk, *new = attention.project(y_btd, y_btd, rotation)
            heads = Heads(query_bthk, *kept["self_attention"].update(*new, read, ring))
            return attention.attend(heads, mask_bhts, scores=scores)

        def attend_to_memory(y_btd: Tensor) -> Tensor:
            heads = Heads(layer.cross_attention.queries(y_btd), *kept["cross_attention"])
            return layer.cross_attention.attend(heads, cross_bias_bhts)

        return layer.run(x_btd, attend, attend_to_memory if "cross_attention" in kept else None)

    x_btd = model.decoder.walk(x_btd, through, turned=turned)
    x_btd = x_btd.reshape(*target.shape[:2], x_btd.shape[2])
    logits_btv = model.logits(x_btd[:, -1:] if last else x_btd)
    return logits_btv, {**cache, "read": end, "leading_b": leading_b}


class _Ring(NamedTuple):
    """How a step reads and writes a layer that keeps a window of tokens.

    earlier_n: the places of the tokens before the step, in their order; None for a single token,
    which all places are read with. last_n: the places of the step's last tokens. bias_bhts: of the
    tokens that are read.
    """

    earlier_n: Tensor | None
    last_n: Tensor
    bias_bhts: Tensor


def _ring(cache: Cache, window: int, end: int, dtype: torch.dtype) -> _Ring:
    """Returns how the step of the tokens up to `end`, whose mask is written, uses a window."""
    read, kept_bwtw = cache["read"], cache["target_mask_bwtw"]
    query_t = torch.arange(read, end, device=kept_bwtw.device)
    if end - read == 1:
        earlier_n, last_n = None, query_t % window
        place_s = torch.arange(window, device=kept_bwtw.device)
        token_s = read - (read - place_s) % window  # the last one in each place, the new one too
    else:
        token_s = torch.arange(max(read - window, 0), end, device=kept_bwtw.device)
        earlier_n, last_n = token_s[: read - end] % window, query_t[-window:] % window
    near_ts = (token_s <= query_t[:, None]) & (token_s > query_t[:, None] - window) & (token_s >= 0)
    mask_bwtsw = kept_bwtw[:, :, None, token_s.clamp(min=0)] & near_ts[:, :, None]
    return _Ring(earlier_n, last_n, _bias(mask_bwtsw.flatten(3).flatten(1, 2)[:, None], dtype))


def _rotations(
    config: TransformerConfig, cache: Cache, position_bt: Tensor, target: Tensor, x_btd: Tensor
) -> list[Rotation | None]:
    """Returns the rotation of every layer for these positions, the copies of a row side by side as
    in x.
    """

    def of_kind(kind: LayerKind) -> Rotation:
        table = cache["rotations"].get(rotary.turning(kind))
        turned = (
            rotary.rotation(config, kind, position_bt, x_btd.dtype)
            if table is None
            else (F.embedding(position_bt, part_pj) for part_pj in table)
        )
        shape = *x_btd.shape[:2], config.rotary_size // 2
        return Rotation(*(part.expand(target.shape[0], -1, -1).reshape(shape) for part in turned))

    return rotary.by_layer(config, len(cache["layers"]), of_kind)


def _written(kept_bswgk: Tensor, new_btgk: Tensor, read: int, ring: _Ring | None) -> Tensor:
    """Computes `KeyValues.update` of keys or values: the copies of each token lie side by side."""
    new_btwgk = new_btgk.unflatten(1, (kept_bswgk.shape[2], -1)).transpose(1, 2)
    if ring is None:
        end = read + new_btwgk.shape[1]
        kept_bswgk[:, read:end] = new_btwgk
        return kept_bswgk[:, :end].flatten(1, 2)
    read_bswgk = kept_bswgk
    if ring.earlier_n is not None:
        read_bswgk = torch.cat([kept_bswgk[:, ring.earlier_n], new_btwgk], dim=1)
    kept_bswgk.index_copy_(1, ring.last_n, new_btwgk[:, -len(ring.last_n) :])
    return read_bswgk.flatten(1, 2)


def _self_mask(cache: Cache, mask_bt: Tensor) -> Tensor:
    """Writes which of the next tokens are real into the cache, then returns their mask
    `b 1 (w t) (s w)`: a copy sees its own past and, of the next tokens, none after itself.
    """
    kept_bwtw, read, length = cache["target_mask_bwtw"], cache["read"], mask_bt.shape[1]
    (rows, copies), end = kept_bwtw.shape[:2], read + length
    own_ww = torch.eye(copies, dtype=torch.bool, device=mask_bt.device)[:, None]
    kept_bwtw[:, :, read:end] = mask_bt.unflatten(0, (rows, copies))[..., None] & own_ww
    mask_bwtsw = kept_bwtw[:, :, None, :end].expand(-1, -1, length, -1, -1)
    if length > 1:
        mask_bwtsw = mask_bwtsw & mask.causal_mask(length, end, mask_bt.device)[0, 0, :, :, None]
    return mask_bwtsw.flatten(3).flatten(1, 2)[:, None]


def _bias(mask_bhts: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns 0 for a key that may be attended to and -inf for others, once a step: given a mask,
    the kernel would make it in every layer.
    """
    return torch.where(mask_bhts, 0.0, -torch.inf).to(dtype)


def decode_in_steps(
    model: Transformer,
    target: Tensor,
    memory_bsd: Tensor | None,
    splits: Sequence[int],
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> Tensor:
    """Computes `decode` in steps of these numbers of tokens: the same logits `b t v`, however the
    target is split. step: see `decode_step`.
    """
    check_ids((target, model.config.target_vocabulary))
    checks.check_splits(splits, target.shape)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    batch = len(target) if memory_bsd is None else None
    cache = start_cache(model, memory_bsd, source_mask_bs, batch, length=target.shape[1])
    logits = []
    masks = repeat(None) if target_mask_bt is None else target_mask_bt.split([*splits], dim=1)
    for part, part_mask_bt in zip(target.split([*splits], dim=1), masks, strict=False):
        logits_btv, cache = decode_step(model, part, cache, part_mask_bt, step)
        logits.append(logits_btv)
    return torch.cat(logits, dim=1)


def reorder(cache: Cache, row_b: Tensor) -> Cache:
    """Returns the cache whose row i is what row `row_b[i]` was.

    Copies of a row change places only among themselves, which leaves their keys and values where
    they are.
    """
    target_mask_bwtw = cache["target_mask_bwtw"]
    batch, copies = target_mask_bwtw.shape[:2]
    target_mask_bwtw = target_mask_bwtw.flatten(0, 1)[row_b].unflatten(0, (batch, copies))
    source_mask_bs, layers = cache["source_mask_bs"], cache["layers"]
    if copies == 1:
        source_mask_bs = None if source_mask_bs is None else source_mask_bs[row_b]
        layers = [
            {name: KeyValues(*(kept[row_b] for kept in pair)) for name, pair in layer.items()}
            for layer in layers
        ]
    return {
        **cache,
        "source_mask_bs": source_mask_bs,
        "target_mask_bwtw": target_mask_bwtw,
        "layers": layers,
        "leading_b": cache["leading_b"][row_b],
    }


def _check_steps(model: Transformer) -> None:
    """Raises ValueError if a step would leave out something that `forward` does: it calls other
    methods of these modules.
    """
    whole: list[tuple[str, Any, Any]] = [
        ("model", model, Transformer),
        ("decoder", model.decoder, Decoder),
    ]
    names = ["self_attention"] + ["cross_attention"] * model.config.cross_attention
    for index, layer in enumerate(model.decoder.layers):
        place = f"decoder.layers.{index}"
        whole.append((place, layer, DecoderLayer))
        whole += [
            (f"{place}.{name}", getattr(layer, name, None), MultiHeadAttention) for name in names
        ]
    for name, module, kind in whole:
        if not isinstance(module, kind) or type(module).forward is not kind.forward:
            raise ValueError(
                f"decoding in steps needs {name} to be a {kind.__name__} with its own forward; "
                f"got {type(module).__name__}"
            )
        if is_changed(module):
            raise ValueError(
                f"decoding in steps calls no forward of {name}, "
                "which must have no hooks and no forward of its own"
            )
