"""Every dropout site of the model: its canonical name and shape, declared once; keep masks."""

import numpy as np

from .arrays import Tree
from .config import TransformerConfig as Config
from .parameters import nest

__all__ = ["draw", "rate", "shapes"]

# site -> shape of its keep mask, in the order of the forward pass
Shapes = dict[str, tuple[int, ...]]


def shapes(config: Config, batch: int, source_length: int, target_length: int) -> Shapes:
    """Returns the sites with a non-zero dropout rate, and the shapes of their keep masks.

    A site is named after its module: `encoder.layers.0.self_attention.weights_dropout` drops
    attention weights `b h t s`.
    """
    result: Shapes = {}
    for stack, layers, length in (
        ("encoder", config.encoder_layers, source_length),
        ("decoder", config.decoder_layers, target_length),
    ):
        x = (batch, length, config.model_width)
        attended = {"self_attention": length}
        if stack == "decoder" and config.cross_attention:
            attended["cross_attention"] = source_length
        if layers:
            result[f"{stack}.embedding_dropout"] = x
        for index in range(layers):
            layer = f"{stack}.layers.{index}"
            for attention, keys in attended.items():
                result[f"{layer}.{attention}.weights_dropout"] = (batch, config.heads, length, keys)
                result[f"{layer}.{attention}_dropout"] = x
            if not config.has_experts(index):
                hidden = (batch, length, config.feed_forward_width)
                result[f"{layer}.feed_forward.hidden_dropout"] = hidden
            result[f"{layer}.feed_forward_dropout"] = x
    if config.classes:
        result["classifier_dropout"] = (batch, config.model_width)
    return {site: shape for site, shape in result.items() if rate(config, site)}


def draw(
    config: Config, batch: int, source_length: int, target_length: int, rng: np.random.Generator
) -> Tree:
    """Draws keep masks for all sites, as a tree; each entry is True with probability 1 - rate."""
    sites = shapes(config, batch, source_length, target_length)
    masks = {
        site: rng.random(shape, dtype=np.float32) >= np.float32(rate(config, site))
        for site, shape in sites.items()
    }
    return nest(masks)


def rate(config: Config, site: str) -> float:
    """Returns the dropout rate of a site."""
    return getattr(config, _RATES.get(site.rpartition(".")[2], "dropout_rate"))


# the config field of sites that are not on a sub-layer's output
_RATES = {
    "weights_dropout": "attention_dropout_rate",
    "hidden_dropout": "hidden_dropout_rate",
    "classifier_dropout": "classifier_dropout_rate",
}
