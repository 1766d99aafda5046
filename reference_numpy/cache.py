"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import (
    attention,
    checks,
    embedding,
    feed_forward,
    inputs,
    layers,
    mask,
    positional_encoding,
    stacks,
    transformer,
)
from .config import TransformerConfig

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

Tree = Mapping[str, Any]
Cache = Mapping[
    str, Any
]  # source_mask_bs; target_mask_bt of the tokens read; layers: the keys and values of each, of both attentions


def start_cache(
    parameters: Tree,
    config: TransformerConfig,
    memory_bsd: np.ndarray | None,
    source_mask_bs: np.ndarray | None = None,
    batch: int | None = None,
) -> Cache:
    """The cache before the first token: keys and values of the memory, which no step changes, and none of the target.

    memory_bsd: None of a decoder alone, which needs batch, the number of rows. source_mask_bs: boolean, True = real token of the source.
    Raises ValueError on shapes that do not fit, and where there is no decoder.
    """
    config.need_decoder()
    checks.check_memory(
        config.cross_attention,
        config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        source_mask_bs,
    )
    checks.check_batch(batch, None if memory_bsd is None else len(memory_bsd))
    if source_mask_bs is not None and memory_bsd is not None:
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2]
        )
    rows: Any = batch if memory_bsd is None else len(memory_bsd)
    kind = parameters[inputs.table(config, "target")]["table"].dtype
    nothing = (
        np.zeros((rows, 0, config.key_value_heads, config.key_size), kind),
        np.zeros((rows, 0, config.key_value_heads, config.value_size), kind),
    )
    layer_caches: list[dict[str, Any]] = [
        {"self_attention": nothing} for _ in range(config.decoder_layers)
    ]
    if memory_bsd is not None:
        for index, layer_cache in enumerate(layer_caches):
            layer = parameters["decoder"]["layers"][str(index)]
            layer_cache["cross_attention"] = attention.keys_and_values(
                layer["cross_attention"], memory_bsd
            )
    return {
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": np.zeros((rows, 0), bool),
        "layers": layer_caches,
    }


def decode_step(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    cache: Cache,
    target_mask_bt: np.ndarray | None = None,
) -> tuple[np.ndarray, Cache]:
    """Logits `b t v` of the next t tokens of the target, and the cache after them.

    They are those rows of `decode` on the whole target: position and causality count from its beginning (CAUSAL). target and
    target_mask_bt: as of `decode`, of these tokens only; t may differ from step to step. Evaluation alone: nothing is dropped.
    Raises ValueError on ids, masks and shapes that do not fit.
    """
    checks.check_same_batch(cache=cache["target_mask_bt"].shape, target=target.shape)
    checks.check_length(cache["target_mask_bt"].shape[1] + target.shape[1], config.max_positions)
    if target_mask_bt is None:
        target_mask_bt = mask.token_mask(target, config.padding_id)
    checks.check_token_mask(
        "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
    )
    read_bt = np.concatenate([cache["target_mask_bt"], target_mask_bt], axis=1)
    x_btd = inputs.embed(
        parameters, config, "target", target, _positions(config, read_bt, target.shape[1])
    )
    source_mask_bs, layer_caches = cache["source_mask_bs"], []
    masks = (
        mask.padding_mask(read_bt),
        None if source_mask_bs is None else mask.padding_mask(source_mask_bs),
    )
    for index, layer_cache in enumerate(cache["layers"]):
        x_btd, layer_cache = decoder_layer_step(
            parameters["decoder"]["layers"][str(index)], config, x_btd, layer_cache, *masks
        )
        layer_caches.append(layer_cache)
    x_btd = stacks.final_norm(parameters["decoder"], config, x_btd)
    logits_btv = embedding.logits(transformer.head(parameters, config), x_btd)
    return logits_btv, {
        "source_mask_bs": source_mask_bs,
        "target_mask_bt": read_bt,
        "layers": layer_caches,
    }


def decoder_layer_step(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    cache: Mapping[str, Any],
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """`layers.decoder_layer` on the next tokens of a target, in evaluation, and the layer's cache after them.

    cache: self_attention, the keys and values of the tokens before, to which those of x are added; cross_attention, those of the memory,
    where there is one.
    """
    y_btd = layers.residual_in(parameters, config, "self_attention", x_btd)
    query_bthk, *new = attention.project(parameters["self_attention"], y_btd)
    key_bsgk, value_bsge = (
        np.concatenate(pair, axis=1) for pair in zip(cache["self_attention"], new, strict=True)
    )
    y_btd = attention.attend(
        parameters["self_attention"], query_bthk, key_bsgk, value_bsge, self_mask_bhts, causal=True
    )
    x_btd = layers.residual_out(parameters, config, "self_attention", x_btd, y_btd, {})

    if "cross_attention" in cache:
        y_btd = layers.residual_in(parameters, config, "cross_attention", x_btd)
        query_bthk = attention.queries(parameters["cross_attention"], y_btd)
        memory_key_bsgk, memory_value_bsge = cache["cross_attention"]
        y_btd = attention.attend(
            parameters["cross_attention"],
            query_bthk,
            memory_key_bsgk,
            memory_value_bsge,
            cross_mask_bhts,
        )
        x_btd = layers.residual_out(parameters, config, "cross_attention", x_btd, y_btd, {})

    y_btd = layers.residual_in(parameters, config, "feed_forward", x_btd)
    y_btd = feed_forward.feed_forward(parameters["feed_forward"], y_btd, config.activation)
    x_btd = layers.residual_out(parameters, config, "feed_forward", x_btd, y_btd, {})
    return x_btd, {**cache, "self_attention": (key_bsgk, value_bsge)}


def decode_in_steps(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray | None,
    splits: Sequence[int],
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
) -> np.ndarray:
    """`decode`, in steps of so many tokens: the same logits `b t v`, however the target is split.

    Raises ValueError as `decode`, and where splits are not lengths of at least 1 that add up to t.
    """
    checks.check_tokens("token", target.shape, str(target.dtype), config.target_vocabulary)
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        checks.check_token_mask(
            "target mask", target_mask_bt.shape, str(target_mask_bt.dtype), target.shape[:2]
        )
    cache, logits = (
        start_cache(
            parameters,
            config,
            memory_bsd,
            source_mask_bs,
            len(target) if memory_bsd is None else None,
        ),
        [],
    )
    for end, length in zip(np.cumsum(splits), splits, strict=True):
        part = slice(end - length, end)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = decode_step(parameters, config, target[:, part], cache, part_mask_bt)
        logits.append(logits_btv)
    return np.concatenate(logits, axis=1)


def reorder(cache: Cache, row_b: np.ndarray) -> Cache:
    """The cache whose row i is what row `row_b[i]` was, of every key, value and mask: beams that live on take their past with them."""
    source_mask_bs = cache["source_mask_bs"]
    return {
        "source_mask_bs": None if source_mask_bs is None else source_mask_bs[row_b],
        "target_mask_bt": cache["target_mask_bt"][row_b],
        "layers": [
            {name: (key[row_b], value[row_b]) for name, (key, value) in layer.items()}
            for layer in cache["layers"]
        ],
    }


def _positions(config: TransformerConfig, read_bt: np.ndarray, length: int) -> np.ndarray:
    """The positions of the last tokens of all that have been read."""
    return positional_encoding.token_positions(read_bt, config.position_start)[:, -length:]
