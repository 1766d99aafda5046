"""Every dropout site of the model: its canonical name and its shape, declared once; keep masks."""

from typing import Any

import numpy as np

from .config import TransformerConfig
from .parameters import nest

__all__ = ["draw", "rate", "shapes"]

Shapes = dict[str, tuple[int, ...]]  # site -> shape of its keep mask, in the order of the forward pass


def shapes(config: TransformerConfig, batch: int, source_length: int, target_length: int) -> Shapes:
    """The sites at which the config drops something, and the shape of what each drops from.

    A site is named after its module: `encoder.layers.0.self_attention.weights_dropout` drops from the attention weights `b h t s`.
    """
    result: Shapes = {}
    for stack, layers, length in (("encoder", config.encoder_layers, source_length), ("decoder", config.decoder_layers, target_length)):
        if not layers:
            continue
        attended = {"self_attention": length} | ({"cross_attention": source_length} if stack == "decoder" else {})
        if config.dropout_rate:
            result[f"{stack}.embedding_dropout"] = (batch, length, config.model_width)
        for index in range(layers):
            layer = _layer(config, batch, length, attended)
            result |= {f"{stack}.layers.{index}.{site}": shape for site, shape in layer.items()}
    return result


def draw(config: TransformerConfig, batch: int, source_length: int, target_length: int, rng: np.random.Generator) -> dict[str, Any]:
    """Random keep masks of all sites, nested by the names' parts: each entry is True with probability 1 - rate (DROPOUT)."""
    masks = {}
    for site, shape in shapes(config, batch, source_length, target_length).items():
        masks[site] = rng.random(shape, dtype=np.float32) >= np.float32(rate(config, site))
    return nest(masks)


def rate(config: TransformerConfig, site: str) -> float:
    """The rate at which the site drops."""
    return getattr(config, _RATES.get(site.rpartition(".")[2], "dropout_rate"))


# the config's field for the sites that are not on a sub-layer's output
_RATES = {"weights_dropout": "attention_dropout_rate", "hidden_dropout": "hidden_dropout_rate"}


def _layer(config: TransformerConfig, batch: int, length: int, attended: dict[str, int]) -> Shapes:
    """The sites of one layer. attended: the number of keys of each of its attentions."""
    result: Shapes = {}
    for attention, keys in attended.items():
        if config.attention_dropout_rate:
            result[f"{attention}.weights_dropout"] = (batch, config.heads, length, keys)
        if config.dropout_rate:
            result[f"{attention}_dropout"] = (batch, length, config.model_width)
    if config.hidden_dropout_rate:
        result["feed_forward.hidden_dropout"] = (batch, length, config.feed_forward_width)
    if config.dropout_rate:
        result["feed_forward_dropout"] = (batch, length, config.model_width)
    return result
