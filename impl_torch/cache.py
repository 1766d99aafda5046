"""Incremental decoding: a cache of keys and values, so that a step computes only its own tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from . import mask, positional_encoding
from .attention import MultiHeadAttention
from .embedding import check_ids
from .framework import is_changed
from .inputs import embed, encoding_table
from .layers import DecoderLayer, Layer
from .rotary import Rotation
from .stacks import Decoder
from .transformer import Transformer
from .values import Heads, Text

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]


class KeyValues(NamedTuple):
    """The keys and values that an attention layer has read; the keys are normalized and rotated."""

    key_bsgk: Tensor
    value_bsge: Tensor

    def update(self, key_btgk: Tensor, value_btge: Tensor) -> "KeyValues":
        """Returns the keys and values read so far, with the next ones appended."""
        key_bsgk = torch.cat([self.key_bsgk, key_btgk], dim=1)
        return KeyValues(key_bsgk, torch.cat([self.value_bsge, value_btge], dim=1))

    def last(self, window: int) -> "KeyValues":
        """Returns the keys and values of the last `window` tokens; 0: of all tokens."""
        return KeyValues(self.key_bsgk[:, -window:], self.value_bsge[:, -window:])


class Cache(TypedDict):
    """The state of a decoder: token masks, and the keys and values of each layer's attentions."""

    source_mask_bs: Tensor | None
    target_mask_bt: Tensor
    layers: list[dict[str, KeyValues]]


def start_cache(
    model: Transformer,
    memory_bsd: Tensor | None,
    source_mask_bs: Tensor | None = None,
    batch: int | None = None,
) -> Cache:
    """Returns the cache before the first token: keys and values of the memory, none of the target.

    memory_bsd: None for a decoder-only model, which needs batch, the number of rows. Raises
    ValueError if the shapes do not match, if the model has no decoder or is in training mode, or if
    a module that steps bypass has a hook or is of another class.
    """
    config = model.config
    config.need_decoder()
    check_steps(model)
    if model.training:
        raise ValueError(
            "incremental decoding needs eval mode; got a model in training mode, call model.eval()"
        )
    shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
    checks.check_batch(batch, None if shape is None else shape[0])
    if shape is not None:
        mask.check("source mask", source_mask_bs, shape[:2])
    given: Tensor = next(model.parameters()) if memory_bsd is None else memory_bsd
    rows, groups = (batch or 0) if memory_bsd is None else len(memory_bsd), config.key_value_heads
    sizes = config.key_size, config.value_size
    nothing = KeyValues(*(given.new_zeros(rows, 0, groups, size) for size in sizes))
    layers = []
    for layer in model.decoder.layers:
        layers.append({"self_attention": nothing})
        if memory_bsd is not None:
            of_memory = layer.cross_attention.keys_and_values(memory_bsd)
            layers[-1]["cross_attention"] = KeyValues(*of_memory)
    read_bt = torch.zeros(rows, 0, dtype=torch.bool, device=given.device)
    return {"source_mask_bs": source_mask_bs, "target_mask_bt": read_bt, "layers": layers}


def decode_step(
    model: Transformer, target: Tensor, cache: Cache, target_mask_bt: Tensor | None = None
) -> tuple[Tensor, Cache]:
    """Returns the logits `b t v` of the next t target tokens, and the updated cache.

    The logits equal the same rows of `decode` on the whole target. target, target_mask_bt: as in
    `decode`, for these tokens only; t may differ between steps. A layer with a window keeps only
    the keys of its window. Raises ValueError on invalid ids, masks or shapes.
    """
    config, past_bt = model.config, cache["target_mask_bt"]
    checks.check_same_batch(cache=past_bt.shape, target=target.shape)
    checks.check_length(past_bt.shape[1] + target.shape[1], config.max_positions)
    check_ids((target, config.target_vocabulary))
    mask.check("target mask", target_mask_bt, target.shape[:2])
    if target_mask_bt is None:
        target_mask_bt = mask.token_mask(target, config.padding_id)
    read_bt = torch.cat([past_bt, target_mask_bt], dim=1)
    position_bt = positions(config, read_bt, target.shape[1])
    past_bsgk = cache["layers"][0]["self_attention"].key_bsgk
    encoding_pd = encoding_table(config, read_bt.shape[1], past_bsgk.dtype, target.device)
    x_btd = embed(model, "target", target, position_bt, encoding_pd=encoding_pd)
    self_mask_bhts: Any = mask.padding_mask(read_bt)
    cross_mask_bhts = mask.padding_mask(cache["source_mask_bs"])
    layers = list(cache["layers"])

    def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
        own, past = layer.self_attention.scores, layers[index]
        length = past["self_attention"].key_bsgk.shape[1] + target.shape[1]
        masks = self_mask_bhts[..., -length:], cross_mask_bhts
        x_btd, after = decoder_layer_step(layer, x_btd, past, own, *masks, rotation)
        layers[index] = after | {"self_attention": after["self_attention"].last(own.window)}
        return x_btd

    logits_btv = model.logits(model.decoder.walk(x_btd, through, position_bt))
    return logits_btv, {**cache, "target_mask_bt": read_bt, "layers": layers}


def decoder_layer_step(
    layer: Layer,
    x_btd: Tensor,
    cache: Mapping[str, Any],
    scores: Scores,
    self_mask_bhts: Tensor | None = None,
    cross_mask_bhts: Tensor | None = None,
    rotation: Rotation | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Runs a decoder layer on the next target tokens; returns its output and updated cache.

    cache: self_attention, whose `update` appends the keys and values of x, and cross_attention if
    there is a memory. scores: for the self-attention. self_mask_bhts: covers all tokens that it
    reads, including those of x.
    """
    after = dict(cache)

    def attend(y_btd: Tensor) -> Tensor:
        heads = layer.self_attention.project(y_btd, y_btd, rotation)
        read = cache["self_attention"].update(heads.key_bsgk, heads.value_bsge)
        after["self_attention"] = read
        heads = Heads(heads.query_bthk, read.key_bsgk, read.value_bsge, heads.sink_h)
        return layer.self_attention.attend(heads, self_mask_bhts, scores=scores)

    def attend_to_memory(y_btd: Tensor) -> Tensor:
        heads = Heads(layer.cross_attention.queries(y_btd), *cache["cross_attention"])
        return layer.cross_attention.attend(heads, cross_mask_bhts)

    crossing = attend_to_memory if "cross_attention" in cache else None
    return layer.run(x_btd, attend, crossing), after


def decode_in_steps(
    model: Transformer,
    target: Tensor,
    memory_bsd: Tensor | None,
    splits: Sequence[int],
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
) -> Tensor:
    """Computes `decode` in steps of the lengths `splits`: the same logits `b t v` for every split,
    unless frequencies depend on the length (ROTARY).

    Raises ValueError as `decode` does, and unless splits are lengths of at least 1 that add up to
    t.
    """
    check_ids((target, model.config.target_vocabulary))
    checks.check_splits(splits, target.shape)
    mask.check("target mask", target_mask_bt, target.shape[:2])
    batch = len(target) if memory_bsd is None else None
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, batch), []
    for part in Text(target, target_mask_bt).split(splits):
        logits_btv, cache = decode_step(model, part.ids, cache, part.mask)
        logits.append(logits_btv)
    return torch.cat(logits, dim=1)


def reorder(cache: Cache, row_b: Tensor) -> Cache:
    """Returns the cache whose row i is row `row_b[i]` of the given one: surviving beams keep their
    past.
    """
    source_mask_bs = cache["source_mask_bs"]
    return {
        "source_mask_bs": None if source_mask_bs is None else source_mask_bs[row_b],
        "target_mask_bt": cache["target_mask_bt"][row_b],
        "layers": [
            {name: KeyValues(key[row_b], value[row_b]) for name, (key, value) in layer.items()}
            for layer in cache["layers"]
        ],
    }


def positions(config: TransformerConfig, read_bt: Tensor, length: int) -> Tensor:
    """Returns the positions of the last `length` tokens read."""
    return positional_encoding.token_positions(read_bt, config.position_start)[:, -length:]


def check_steps(model: Transformer) -> None:
    """Raises ValueError if a step would bypass code in a module's `forward` or in its hooks."""
    whole: list[tuple[str, nn.Module | None, type[nn.Module]]] = [("model", model, Transformer)]
    whole.append(("decoder", model.decoder, Decoder))
    names = ["self_attention"] + ["cross_attention"] * model.config.cross_attention
    for index, layer in enumerate(model.decoder.layers):
        place = f"decoder.layers.{index}"
        parts = [(f"{place}.{name}", getattr(layer, name, None)) for name in names]
        whole.append((place, layer, DecoderLayer))
        whole += [(part, module, MultiHeadAttention) for part, module in parts]
    for place, module, kind in whole:
        own = isinstance(module, kind) and type(module).forward is kind.forward
        if module is None or not own or is_changed(module):
            raise ValueError(
                f"incremental decoding bypasses {place}: it must be a {kind.__name__} with its own "
                f"forward and without hooks; got {type(module).__name__}"
            )
