"""What the judge calls."""

from collections.abc import Callable
from functools import partial
from typing import Any

from . import attention, embedding, feed_forward, layers, mask, positional_encoding, softmax, transformer
from .compiled import compiled
from .dropout import Dropout
from .normalization import LayerNorm
from .weights import TABLE

__all__ = ["compiled", "components", "framework", "modes", "weights"]

framework = "tf"
modes = ("eager", "compiled")
weights = TABLE

components: dict[str, Callable[..., Callable[..., Any]]] = {
    "embedding": lambda config, dtype: embedding.Embedding(
        config.source_vocabulary, config.model_width, config.scale_embedding, dtype=dtype.name
    ),
    "token_positions": lambda config, dtype: positional_encoding.token_positions,
    "positional_encoding": lambda config, dtype: partial(positional_encoding.positional_encoding, width=config.model_width, dtype=dtype),
    "token_mask": lambda config, dtype: partial(mask.token_mask, padding_id=config.padding_id),
    "padding_mask": lambda config, dtype: mask.padding_mask,
    "causal_mask": lambda config, dtype: mask.causal_mask,
    "combine_masks": lambda config, dtype: mask.combine_masks,
    "softmax": lambda config, dtype: softmax.softmax,
    "scaled_dot_product_attention": lambda config, dtype: attention.scaled_dot_product_attention,
    "multi_head_attention": lambda config, dtype: attention.MultiHeadAttention(config, dtype=dtype.name),
    "activation": lambda config, dtype: partial(feed_forward.activation, name=config.activation),
    "feed_forward": lambda config, dtype: feed_forward.FeedForward(config, dtype=dtype.name),
    "layer_norm": lambda config, dtype: LayerNorm(config.model_width, config.epsilon, dtype=dtype.name),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate, dtype=dtype.name),
    "encoder_layer": lambda config, dtype: layers.EncoderLayer(config, dtype=dtype.name),
    "decoder_layer": lambda config, dtype: layers.DecoderLayer(config, dtype=dtype.name),
    "encoder": lambda config, dtype: transformer.Encoder(config, dtype=dtype.name),
    "decoder": lambda config, dtype: transformer.Decoder(config, dtype=dtype.name),
    "logits": lambda config, dtype: embedding.Logits(config.model_width, config.target_vocabulary, config.output_bias, dtype=dtype.name),
    "transformer": lambda config, dtype: transformer.Transformer(config, dtype=dtype.name),
}
