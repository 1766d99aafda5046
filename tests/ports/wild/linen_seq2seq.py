"""Encoder-decoder Transformer in Flax Linen: pre-norm blocks, exact GELU, one table for source, target and output.

Shapes: [batch, length], [batch, length, emb_dim], [batch, length, heads, head_dim].
"""
import functools
from typing import Any, Callable, Optional

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@flax.struct.dataclass
class TransformerConfig:
    vocab_size: int
    emb_dim: int
    num_heads: int
    qk_dim: int
    v_dim: int
    mlp_dim: int
    encoder_blocks: int
    decoder_blocks: int
    norm_eps: float = 1e-6
    scale_embed: bool = True
    pad_id: Optional[int] = 0
    dropout_rate: float = 0.1
    deterministic: bool = True
    dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.xavier_uniform()


def attention_mask(query_valid: Array, key_valid: Array, pairwise: Callable = jnp.logical_and) -> Array:
    """[batch, q], [batch, k] -> [batch, 1, q, k], True where the query may look at the key."""
    mask = pairwise(query_valid[..., :, None], key_valid[..., None, :])
    return mask[..., None, :, :].astype(bool)


def causal_mask(query_length: int, key_length: int) -> Array:
    queries = jnp.arange(query_length)[None, :] + (key_length - query_length)
    keys = jnp.arange(key_length)[None, :]
    return attention_mask(queries, keys, jnp.greater_equal)


def combine_masks(*masks: Optional[Array]) -> Optional[Array]:
    masks = [m for m in masks if m is not None]
    if not masks:
        return None
    return functools.reduce(jnp.logical_and, masks)


def sinusoid(positions: np.ndarray, emb_dim: int, dtype=jnp.float32, min_scale=1.0, max_scale=10000.0) -> Array:
    """Sines in the even features and cosines in the odd ones: [..., length] -> [..., length, emb_dim].

    Positions are known when the model is traced, so that the table is made by NumPy in float64 and then cast.
    """
    pairs = np.arange((emb_dim + 1) // 2)
    scale_factor = -np.log(max_scale / min_scale) / (emb_dim / 2)
    div_term = min_scale * np.exp(pairs * scale_factor)
    angles = np.asarray(positions)[..., None] * div_term
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return jnp.asarray(table.reshape(*positions.shape, -1)[..., :emb_dim], dtype)


def dot_product_attention(query, key, value, mask=None, bias=None):
    """[b, q, h, k], [b, s, h, k], [b, s, h, e] -> [b, q, h, e] and the weights [b, h, q, s]."""
    depth = query.shape[-1]
    logits = jnp.einsum("bqhd,bkhd->bhqk", query / np.sqrt(depth).astype(query.dtype), key)
    if bias is not None:
        logits = logits + bias
        mask = combine_masks(mask, bias > -jnp.inf)
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    weights = nn.softmax(logits, axis=-1)
    if mask is not None:  # queries without any key to look at get nothing, not the mean
        weights = jnp.where(mask, weights, 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value), weights


class MultiHeadAttention(nn.Module):
    cfg: TransformerConfig

    @nn.compact
    def __call__(self, inputs_q, inputs_kv, mask=None, bias=None, causal=False, return_weights=False):
        cfg = self.cfg
        project = functools.partial(
            nn.DenseGeneral, axis=-1, use_bias=False, dtype=cfg.dtype, param_dtype=cfg.dtype,
            kernel_init=cfg.kernel_init)
        query = project(features=(cfg.num_heads, cfg.qk_dim), name="query")(inputs_q)
        key = project(features=(cfg.num_heads, cfg.qk_dim), name="key")(inputs_kv)
        value = project(features=(cfg.num_heads, cfg.v_dim), name="value")(inputs_kv)
        if causal:
            mask = combine_masks(mask, causal_mask(inputs_q.shape[1], inputs_kv.shape[1]))
        x, weights = dot_product_attention(query, key, value, mask, bias)
        out = project(features=cfg.emb_dim, axis=(-2, -1), name="out")(x)
        return (out, weights) if return_weights else out


def make_norm(cfg: TransformerConfig, name: Optional[str] = None) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=cfg.norm_eps, use_fast_variance=False, dtype=cfg.dtype, param_dtype=cfg.dtype,
                        name=name)


class MlpBlock(nn.Module):
    cfg: TransformerConfig

    @nn.compact
    def __call__(self, inputs):
        cfg = self.cfg
        dense = functools.partial(nn.Dense, dtype=cfg.dtype, param_dtype=cfg.dtype, kernel_init=cfg.kernel_init)
        x = dense(cfg.mlp_dim, name="wi")(inputs)
        x = nn.gelu(x, approximate=False)
        x = nn.Dropout(cfg.dropout_rate, deterministic=cfg.deterministic)(x)
        return dense(cfg.emb_dim, name="wo")(x)


class EncoderBlock(nn.Module):
    cfg: TransformerConfig

    @nn.compact
    def __call__(self, inputs, mask=None):
        cfg = self.cfg
        drop = functools.partial(nn.Dropout, cfg.dropout_rate, deterministic=cfg.deterministic)
        x = make_norm(cfg, "ln_attn")(inputs)
        x = MultiHeadAttention(cfg, name="attn")(x, x, mask)
        x = drop()(x) + inputs
        y = make_norm(cfg, "ln_mlp")(x)
        y = MlpBlock(cfg, name="mlp")(y)
        return x + drop()(y)


class DecoderBlock(nn.Module):
    cfg: TransformerConfig

    def setup(self):
        cfg = self.cfg
        self.ln_self, self.ln_cross, self.ln_mlp = make_norm(cfg), make_norm(cfg), make_norm(cfg)
        self.self_attn = MultiHeadAttention(cfg)
        self.cross_attn = MultiHeadAttention(cfg)
        self.mlp = MlpBlock(cfg)
        self.dropout = nn.Dropout(cfg.dropout_rate, deterministic=cfg.deterministic)

    def __call__(self, targets, encoded, decoder_mask=None, encoder_decoder_mask=None):
        length = targets.shape[1]
        mask = combine_masks(decoder_mask, causal_mask(length, length))
        x = self.ln_self(targets)
        x = self.dropout(self.self_attn(x, x, mask)) + targets
        y = self.ln_cross(x)
        y = self.dropout(self.cross_attn(y, encoded, encoder_decoder_mask)) + x
        z = self.mlp(self.ln_mlp(y))
        return self.dropout(z) + y


class Encoder(nn.Module):
    cfg: TransformerConfig

    def setup(self):
        self.block = [EncoderBlock(self.cfg) for _ in range(self.cfg.encoder_blocks)]
        self.ln_final = make_norm(self.cfg)

    def __call__(self, x, mask=None):
        for block in self.block:
            x = block(x, mask)
        return self.ln_final(x)


class Decoder(nn.Module):
    cfg: TransformerConfig

    def setup(self):
        self.block = [DecoderBlock(self.cfg) for _ in range(self.cfg.decoder_blocks)]
        self.ln_final = make_norm(self.cfg)

    def __call__(self, y, encoded, decoder_mask=None, encoder_decoder_mask=None):
        for block in self.block:
            y = block(y, encoded, decoder_mask, encoder_decoder_mask)
        y = self.ln_final(y)
        return y


class TokenEmbed(nn.Module):
    cfg: TransformerConfig

    def setup(self):
        cfg = self.cfg
        self.table = nn.Embed(cfg.vocab_size, cfg.emb_dim, dtype=cfg.dtype, param_dtype=cfg.dtype,
                              embedding_init=nn.initializers.normal(stddev=cfg.emb_dim ** -0.5))

    def __call__(self, tokens):
        if jnp.issubdtype(tokens.dtype, jnp.floating):
            raise NotCovered("ids only")
        x = self.table(tokens)
        return x * jnp.sqrt(jnp.asarray(self.cfg.emb_dim, x.dtype)) if self.cfg.scale_embed else x

    def attend(self, x):
        return self.table.attend(x)


class Seq2SeqTransformer(nn.Module):
    cfg: TransformerConfig

    def setup(self):
        self.shared_embed = TokenEmbed(self.cfg)
        self.encoder = Encoder(self.cfg)
        self.decoder = Decoder(self.cfg)

    def embed(self, tokens):
        x = self.shared_embed(tokens)
        return x + sinusoid(np.arange(tokens.shape[1])[None], self.cfg.emb_dim, x.dtype)

    def valid(self, tokens):
        return jnp.ones(tokens.shape, bool) if self.cfg.pad_id is None else tokens != self.cfg.pad_id

    def encode(self, inputs, inputs_valid):
        return self.encoder(self.embed(inputs), attention_mask(jnp.ones_like(inputs_valid), inputs_valid))

    def decode(self, encoded, inputs_valid, targets, targets_valid):
        decoder_mask = attention_mask(jnp.ones_like(targets_valid), targets_valid)
        cross_mask = attention_mask(jnp.ones_like(targets_valid), inputs_valid)
        y = self.decoder(self.embed(targets), encoded, decoder_mask, cross_mask)
        return self.shared_embed.attend(y)

    def __call__(self, inputs, targets, inputs_valid=None, targets_valid=None):
        inputs_valid = self.valid(inputs) if inputs_valid is None else inputs_valid
        targets_valid = self.valid(targets) if targets_valid is None else targets_valid
        encoded = self.encode(inputs, inputs_valid)
        return self.decode(encoded, inputs_valid, targets, targets_valid)


from rosettaformer.ports import CLASSIC, NotCovered  # noqa: E402

framework = "jax"
dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "heads": 4, "key_value_heads": 4,
    "positions": "sinusoidal", "position_start": "row", "activation": "gelu_erf",
    "norm_placement": "pre", "final_norm": True, "share_embeddings": True, "tie_logits": True,
    "attention_bias": False, "output_bias": False}


def settings(c, dtype):
    return TransformerConfig(
        vocab_size=c.target_vocabulary, emb_dim=c.model_width, num_heads=c.heads, qk_dim=c.key_size,
        v_dim=c.value_size, mlp_dim=c.feed_forward_width, encoder_blocks=c.encoder_layers,
        decoder_blocks=c.decoder_layers, norm_eps=c.epsilon, scale_embed=c.scale_embedding, pad_id=c.padding_id,
        dtype=dtype)


def attention_alone(query, key, value, mask=None, bias=None, causal=False, return_weights=False):
    if key.shape[2] != query.shape[2]:
        raise NotCovered("as many keys as queries in heads")
    if causal:
        mask = combine_masks(mask, causal_mask(query.shape[1], key.shape[1]))
    out, weights = dot_product_attention(query, key, value, mask, bias)
    return (out, weights) if return_weights else out


def of(module):
    return lambda c, dtype: module(settings(c, dtype))


components = {
    "layer_norm": lambda c, dtype: make_norm(settings(c, dtype)),
    "feed_forward": of(MlpBlock),
    "embedding": of(TokenEmbed),
    "positional_encoding": lambda c, dtype: lambda positions: sinusoid(positions, c.model_width, dtype),
    "scaled_dot_product_attention": lambda c, dtype: attention_alone,
    "multi_head_attention": of(MultiHeadAttention),
    "encoder_layer": of(EncoderBlock), "decoder_layer": of(DecoderBlock),
    "encoder": of(Encoder), "decoder": of(Decoder), "transformer": of(Seq2SeqTransformer),
}

norm = (("scale", "scale", "d"), ("offset", "bias", "d"))
blocks = tuple((f"layers.{i}", f"block_{i}") for i in range(12)) + (("final_norm", "ln_final"),)
weights = {
    "layer_norm": norm,
    "feed_forward": (("hidden.kernel", "wi.kernel", "d f"), ("hidden.bias", "wi.bias", "f"),
                     ("output.kernel", "wo.kernel", "f d"), ("output.bias", "wo.bias", "d")),
    "embedding": (("table", "table.embedding", "v d"),),
    "multi_head_attention": (("query.kernel", "query.kernel", "d h k"), ("key.kernel", "key.kernel", "d g k"),
                             ("value.kernel", "value.kernel", "d g e"), ("output.kernel", "out.kernel", "h e d")),
    "encoder_layer": (("self_attention", "attn"), ("self_attention_norm", "ln_attn"), ("feed_forward", "mlp"),
                      ("feed_forward_norm", "ln_mlp")),
    "decoder_layer": (("self_attention", "self_attn"), ("self_attention_norm", "ln_self"),
                      ("cross_attention", "cross_attn"), ("cross_attention_norm", "ln_cross"),
                      ("feed_forward", "mlp"), ("feed_forward_norm", "ln_mlp")),
    "encoder": blocks, "decoder": blocks,
    "transformer": (("source_embedding", "shared_embed"), ("target_embedding", "shared_embed")),
}

call = {
    "layer_norm": {"x": "x_btd"}, "feed_forward": {"inputs": "x_btd"}, "embedding": {"tokens": "token"},
    "positional_encoding": {"positions": "position_bt"},
    "scaled_dot_product_attention": {"query": "query_bthk", "key": "key_bsgk", "value": "value_bsge",
                                     "mask": "mask_bhts", "bias": "bias_bhts", "causal": "causal",
                                     "return_weights": "return_weights"},
    "multi_head_attention": {"inputs_q": "query_btd", "inputs_kv": "memory_bsd", "mask": "mask_bhts",
                             "bias": "bias_bhts", "causal": "causal", "return_weights": "return_weights"},
    "encoder_layer": {"inputs": "x_btd", "mask": "mask_bhts"},
    "decoder_layer": {"targets": "x_btd", "encoded": "memory_bsd", "decoder_mask": "self_mask_bhts",
                      "encoder_decoder_mask": "cross_mask_bhts"},
    "encoder": {"x": "x_bsd", "mask": "mask_bhts"},
    "decoder": {"y": "x_btd", "encoded": "memory_bsd", "decoder_mask": "self_mask_bhts",
                "encoder_decoder_mask": "cross_mask_bhts"},
    "transformer": {"inputs": "source", "targets": "target", "inputs_valid": "source_mask_bs",
                    "targets_valid": "target_mask_bt"},
}
