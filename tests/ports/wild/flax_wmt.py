"""Transformer encoder-decoder for machine translation in Flax Linen, pre-norm, after the layout of Flax's WMT example.

Without dropout and decoding cache. All attention projections are without bias; the output shares its weights with the target embedding.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import struct

from rosettaformer.ports import CLASSIC, NotCovered


@struct.dataclass
class TransformerConfig:
    vocab_size: int
    output_vocab_size: int
    dtype: Any = jnp.float32
    emb_dim: int = 12
    num_heads: int = 3
    num_encoder_layers: int = 2
    num_decoder_layers: int = 2
    qkv_dim: int = 12
    mlp_dim: int = 24
    epsilon: float = 1e-6
    pad: int = 0


def sinusoidal_table(max_len, d_feature, max_scale=10000.0):
    """Sines at the even features, cosines at the odd ones: (max_len, d_feature)."""
    pe = np.zeros((max_len, d_feature), dtype=np.float64)
    position = np.arange(0, max_len)[:, np.newaxis]
    scale_factor = -np.log(max_scale) / (d_feature // 2)
    div_term = np.exp(np.arange(0, d_feature // 2) * scale_factor)
    pe[:, 0::2] = np.sin(position * div_term)
    pe[:, 1::2] = np.cos(position * div_term)
    return pe


def shift_right(x):
    """Shifts the input to the right by padding with zeros on axis 1: for callers that have unshifted targets."""
    return jnp.pad(x, ((0, 0), (1, 0)))[:, :-1]


def real_tokens(x, pad):
    """True where x is a token, False at the padding (if there is such an id)."""
    return jnp.ones(x.shape, bool) if pad is None else x != pad


def attend(query, key, value, mask=None, **kwargs):
    """Flax's attention, but a query that may attend to nothing gets zeros instead of the mean of the values."""
    kwargs = {name: kwargs[name] for name in ("dtype", "precision", "deterministic") if name in kwargs}
    out = nn.dot_product_attention(query, key, value, mask=mask, **kwargs)
    if mask is None:
        return out
    some = mask.any(axis=-1)  # [batch, 1 or heads, q_length]
    return jnp.where(jnp.swapaxes(some, 1, 2)[..., None], out, 0)


class AddPositionEmbs(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs):
        length = inputs.shape[1]
        pos_embedding = sinusoidal_table(length, inputs.shape[2])
        return inputs + jnp.asarray(pos_embedding, inputs.dtype)[None]


class MlpBlock(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs):
        cfg = self.config
        x = nn.Dense(cfg.mlp_dim, dtype=cfg.dtype, param_dtype=cfg.dtype)(inputs)
        x = nn.relu(x)
        output = nn.Dense(inputs.shape[-1], dtype=cfg.dtype, param_dtype=cfg.dtype)(x)
        return output


def attention(cfg, name):
    return nn.MultiHeadDotProductAttention(
        num_heads=cfg.num_heads, qkv_features=cfg.qkv_dim, dtype=cfg.dtype, param_dtype=cfg.dtype,
        use_bias=False, attention_fn=attend, deterministic=True, name=name)


def norm(cfg, name=None):
    return nn.LayerNorm(epsilon=cfg.epsilon, dtype=cfg.dtype, param_dtype=cfg.dtype, use_fast_variance=False, name=name)


class Encoder1DBlock(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs, encoder_mask=None):
        cfg = self.config

        # Attention block.
        x = norm(cfg)(inputs)
        x = attention(cfg, "SelfAttention")(x, mask=encoder_mask)
        x = x + inputs

        # MLP block.
        y = norm(cfg)(x)
        y = MlpBlock(config=cfg)(y)

        return x + y


class EncoderDecoder1DBlock(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, targets, encoded, decoder_mask=None, encoder_decoder_mask=None):
        cfg = self.config
        causal = nn.make_causal_mask(targets[..., 0], dtype=bool)
        decoder_mask = nn.combine_masks(decoder_mask, causal, dtype=bool)

        # Decoder block.
        x = norm(cfg)(targets)
        x = attention(cfg, "SelfAttention")(x, mask=decoder_mask)
        x = x + targets

        # Encoder-Decoder block.
        y = norm(cfg)(x)
        y = attention(cfg, "CrossAttention")(y, encoded, mask=encoder_decoder_mask)
        y = y + x

        # MLP block.
        z = norm(cfg)(y)
        z = MlpBlock(config=cfg)(z)

        return y + z


class Encoder(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, x, encoder_mask=None):
        for lyr in range(self.config.num_encoder_layers):
            x = Encoder1DBlock(config=self.config, name=f"encoderblock_{lyr}")(x, encoder_mask)
        return norm(self.config, "encoder_norm")(x)


class Decoder(nn.Module):
    config: TransformerConfig

    @nn.compact
    def __call__(self, y, encoded, decoder_mask=None, encoder_decoder_mask=None):
        for lyr in range(self.config.num_decoder_layers):
            y = EncoderDecoder1DBlock(config=self.config, name=f"encoderdecoderblock_{lyr}")(
                y, encoded, decoder_mask, encoder_decoder_mask)
        return norm(self.config, "encoderdecoder_norm")(y)


class Transformer(nn.Module):
    config: TransformerConfig

    def setup(self):
        cfg = self.config
        self.input_embed = nn.Embed(cfg.vocab_size, cfg.emb_dim, dtype=cfg.dtype, param_dtype=cfg.dtype)
        self.output_embed = nn.Embed(cfg.output_vocab_size, cfg.emb_dim, dtype=cfg.dtype, param_dtype=cfg.dtype)
        self.posembed = AddPositionEmbs(config=cfg)
        self.encoder = Encoder(config=cfg)
        self.decoder = Decoder(config=cfg)

    def encode(self, inputs, inputs_mask):
        encoder_mask = nn.make_attention_mask(jnp.ones_like(inputs_mask), inputs_mask, dtype=bool)
        x = self.posembed(self.input_embed(inputs))
        return self.encoder(x, encoder_mask)

    def decode(self, encoded, inputs_mask, targets, targets_mask):
        decoder_mask = nn.make_attention_mask(jnp.ones_like(targets_mask), targets_mask, dtype=bool)
        encoder_decoder_mask = nn.make_attention_mask(jnp.ones_like(targets_mask), inputs_mask, dtype=bool)
        y = self.posembed(self.output_embed(targets))
        y = self.decoder(y, encoded, decoder_mask, encoder_decoder_mask)
        logits = self.output_embed.attend(y)
        return logits

    def __call__(self, inputs, targets, inputs_mask=None, targets_mask=None):
        if inputs_mask is None:
            inputs_mask = real_tokens(inputs, self.config.pad)
        if targets_mask is None:
            targets_mask = real_tokens(targets, self.config.pad)
        encoded = self.encode(inputs, inputs_mask)
        return self.decode(encoded, inputs_mask, targets, targets_mask)


framework = "jax"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3,
    "key_size": 4, "value_size": 4, "positions": "sinusoidal", "max_positions": 0,
    "position_offset": 0, "position_start": "row", "segments": 0, "embedding_norm": False,
    "activation": "relu", "norm_placement": "pre", "final_norm": True, "scale_embedding": False,
    "share_embeddings": False, "tie_logits": True, "attention_bias": False, "output_bias": False,
    "pooler": False, "classes": 0, "masked_language_head": False}


def settings(config, dtype):
    return TransformerConfig(
        vocab_size=config.source_vocabulary, output_vocab_size=config.target_vocabulary,
        dtype=dtype, emb_dim=config.model_width, num_heads=config.heads,
        num_encoder_layers=config.encoder_layers, num_decoder_layers=config.decoder_layers,
        qkv_dim=config.heads * config.key_size, mlp_dim=config.feed_forward_width,
        epsilon=config.epsilon, pad=config.padding_id)


components = {
    "layer_norm": lambda config, dtype: norm(settings(config, dtype)),
    "feed_forward": lambda config, dtype: MlpBlock(settings(config, dtype)),
    "encoder_layer": lambda config, dtype: Encoder1DBlock(settings(config, dtype)),
    "decoder_layer": lambda config, dtype: EncoderDecoder1DBlock(settings(config, dtype)),
    "encoder": lambda config, dtype: Encoder(settings(config, dtype)),
    "decoder": lambda config, dtype: Decoder(settings(config, dtype)),
    "transformer": lambda config, dtype: Transformer(settings(config, dtype)),
}


def ids(token):
    if not jnp.issubdtype(token.dtype, jnp.integer):
        raise NotCovered("nn.Embed takes integer ids")
    return token


call = {
    "layer_norm": {"x": "x_btd"},
    "feed_forward": {"inputs": "x_btd"},
    "encoder_layer": {"inputs": "x_btd", "encoder_mask": "mask_bhts"},
    "decoder_layer": {"targets": "x_btd", "encoded": "memory_bsd", "decoder_mask": "self_mask_bhts",
        "encoder_decoder_mask": "cross_mask_bhts"},
    "encoder": {"x": "x_bsd", "encoder_mask": "mask_bhts"},
    "decoder": {"y": "x_btd", "encoded": "memory_bsd", "decoder_mask": "self_mask_bhts",
        "encoder_decoder_mask": "cross_mask_bhts"},
    "transformer": {
        "inputs": lambda inputs: ids(inputs["source"]),
        "targets": lambda inputs: ids(inputs["target"]),
        "inputs_mask": "source_mask_bs",
        "targets_mask": "target_mask_bt",
    },
}

weights = {
    "layer_norm": (("scale", "scale", "d"), ("offset", "bias", "d")),
    "feed_forward": (("hidden.kernel", "Dense_0.kernel", "d f"),
        ("hidden.bias", "Dense_0.bias", "f"), ("output.kernel", "Dense_1.kernel", "f d"),
        ("output.bias", "Dense_1.bias", "d")),
    "multi_head_attention": (("query.kernel", "query.kernel", "d h k"),
        ("key.kernel", "key.kernel", "d g k"), ("value.kernel", "value.kernel", "d g e"),
        ("output.kernel", "out.kernel", "h e d")),
    "encoder_layer": (("self_attention", "SelfAttention"), ("self_attention_norm", "LayerNorm_0"),
        ("feed_forward", "MlpBlock_0"), ("feed_forward_norm", "LayerNorm_1")),
    "decoder_layer": (("self_attention", "SelfAttention"), ("self_attention_norm", "LayerNorm_0"),
        ("cross_attention", "CrossAttention"), ("cross_attention_norm", "LayerNorm_1"),
        ("feed_forward", "MlpBlock_0"), ("feed_forward_norm", "LayerNorm_2")),
    "encoder": (("layers.0", "encoderblock_0"), ("layers.1", "encoderblock_1"),
        ("layers.2", "encoderblock_2"), ("final_norm", "encoder_norm")),
    "decoder": (("layers.0", "encoderdecoderblock_0"), ("layers.1", "encoderdecoderblock_1"),
        ("layers.2", "encoderdecoderblock_2"), ("final_norm", "encoderdecoder_norm")),
    "transformer": (("source_embedding.table", "input_embed.embedding", "v d"),
        ("target_embedding.table", "output_embed.embedding", "v d")),
}
