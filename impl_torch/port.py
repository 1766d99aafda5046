"""What the judge calls: every component, built from a config."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from reference_numpy import TransformerConfig

from .attention import MultiHeadAttention, scaled_dot_product_attention
from .compiled import compiled
from .dropout import Dropout
from .embedding import Embedding, Logits
from .feed_forward import FeedForward, activation
from .layers import DecoderLayer, EncoderLayer
from .mask import causal_mask, combine_masks, padding_mask, token_mask
from .normalization import LayerNorm
from .positional_encoding import positional_encoding, token_positions
from .softmax import softmax
from .transformer import Decoder, Encoder, Transformer
from .weights import TABLE

__all__ = ["compiled", "components", "framework", "modes", "weights"]

Build = Callable[[TransformerConfig, torch.dtype], Callable[..., Any]]

framework = "torch"
modes = ("eager", "compiled")
weights = TABLE
components: dict[str, Build] = {
    "embedding": lambda config, dtype: Embedding(config.source_vocabulary, config.model_width, config.scale_embedding),
    "token_positions": lambda config, dtype: token_positions,
    "positional_encoding": lambda config, dtype: partial(positional_encoding, width=config.model_width, dtype=dtype),
    "token_mask": lambda config, dtype: partial(token_mask, padding_id=config.padding_id),
    "padding_mask": lambda config, dtype: padding_mask,
    "causal_mask": lambda config, dtype: causal_mask,
    "combine_masks": lambda config, dtype: combine_masks,
    "softmax": lambda config, dtype: softmax,
    "scaled_dot_product_attention": lambda config, dtype: scaled_dot_product_attention,
    "multi_head_attention": lambda config, dtype: MultiHeadAttention(config),
    "activation": lambda config, dtype: partial(activation, name=config.activation),
    "feed_forward": lambda config, dtype: FeedForward(config),
    "layer_norm": lambda config, dtype: LayerNorm(config.model_width, config.epsilon),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate),
    "encoder_layer": lambda config, dtype: EncoderLayer(config),
    "decoder_layer": lambda config, dtype: DecoderLayer(config),
    "encoder": lambda config, dtype: Encoder(config),
    "decoder": lambda config, dtype: Decoder(config),
    "logits": lambda config, dtype: Logits(config.model_width, config.target_vocabulary, config.output_bias),
    "transformer": lambda config, dtype: Transformer(config),
}
