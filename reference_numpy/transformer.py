"""Encoder, decoder and the whole Transformer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import checks, dropout, embedding, layers, mask, normalization, positional_encoding
from .config import TransformerConfig

__all__ = ["decode", "decoder", "encode", "encoder", "transformer"]

Tree = Mapping[str, Any]


def encoder(
    parameters: Tree, config: TransformerConfig, x_bsd: np.ndarray, mask_bhts: np.ndarray | None = None, keep: Tree | None = None
) -> np.ndarray:
    """The stack of encoder layers, then the final norm where the config has one. Vectors in, vectors out: `b s d`.

    Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    layer_keep = (keep or {}).get("layers", {})
    for index in range(config.encoder_layers):
        x_bsd = layers.encoder_layer(parameters["layers"][str(index)], config, x_bsd, mask_bhts, layer_keep.get(str(index)))
    return normalization.layer_norm(parameters["final_norm"], x_bsd, config.epsilon) if config.final_norm else x_bsd


def decoder(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """The stack of decoder layers, then the final norm where the config has one. Vectors in, vectors out: `b t d`.

    Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    layer_keep = (keep or {}).get("layers", {})
    for index in range(config.decoder_layers):
        x_btd = layers.decoder_layer(
            parameters["layers"][str(index)], config, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, layer_keep.get(str(index))
        )
    return normalization.layer_norm(parameters["final_norm"], x_btd, config.epsilon) if config.final_norm else x_btd


def encode(
    parameters: Tree, config: TransformerConfig, source: np.ndarray, source_mask_bs: np.ndarray | None = None, keep: Tree | None = None
) -> np.ndarray:
    """`memory = encoder(dropout(embedding(source) + position))`, `b s d`.

    source: ids `b s`, or soft one-hot rows `b s v`. source_mask_bs: boolean, True = real token; without it, every id but the padding id.
    keep: dropout masks by site (encoder.embedding_dropout and those of the layers); None evaluates.
    Raises ValueError on ids, masks and shapes that do not fit.
    """
    keep = (keep or {}).get("encoder", {})
    x_bsd, mask_bs = _embed(parameters["source_embedding"], config, "source", source, source_mask_bs, keep)
    return encoder(parameters["encoder"], config, x_bsd, mask.padding_mask(mask_bs), keep)


def decode(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t.

    source_mask_bs hides the memory's padding. Otherwise as `encode`. Raises ValueError on ids, masks and shapes that do not fit, and
    where the config has no decoder.
    """
    if not config.decoder_layers:
        raise ValueError("decoding needs at least one decoder layer; got decoder_layers=0")
    checks.check_features("memory", memory_bsd.shape, config.model_width)
    checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
    table = parameters["source_embedding" if config.share_embeddings else "target_embedding"]
    keep = (keep or {}).get("decoder", {})
    x_btd, mask_bt = _embed(table, config, "target", target, target_mask_bt, keep)
    if source_mask_bs is not None:
        checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2])
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    x_btd = decoder(parameters["decoder"], config, x_btd, memory_bsd, mask.padding_mask(mask_bt), cross_mask_bhts, keep)
    head = dict(parameters.get("logits", {}))
    if config.tie_logits:
        head["kernel"] = table["table"].T
    return embedding.logits(head, x_btd)


def transformer(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    target: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    Arguments and errors as `encode` and `decode`. Source: Vaswani et al. 2017, figure 1.
    """
    checks.check_same_batch(source=source.shape, target=target.shape)
    memory_bsd = encode(parameters, config, source, source_mask_bs, keep)
    if source_mask_bs is None:
        source_mask_bs = mask.token_mask(source, config.padding_id)
    return decode(parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep)


def _embed(
    table: Tree, config: TransformerConfig, name: str, token: np.ndarray, mask_bt: np.ndarray | None, keep: Tree
) -> tuple[np.ndarray, np.ndarray]:
    x_btd = embedding.embedding(table, token, config.scale_embedding)
    if mask_bt is None:
        mask_bt = mask.token_mask(token, config.padding_id)
    checks.check_token_mask(f"{name} mask", mask_bt.shape, str(mask_bt.dtype), token.shape[:2])
    position_bt = positional_encoding.token_positions(mask_bt)
    x_btd = x_btd + positional_encoding.positional_encoding(position_bt, config.model_width, x_btd.dtype)
    return dropout.dropout(x_btd, keep.get("embedding_dropout"), config.dropout_rate), mask_bt
