"""Scaled dot-product attention and multi-head attention."""

from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import mask, softmax
from .backend import Configured, keras, register, widen
from .dropout import Dropout
from .projection import Projection

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

Output: TypeAlias = "tf.Tensor | tuple[tf.Tensor, tf.Tensor]"


def scaled_dot_product_attention(
    query_bthk: tf.Tensor,
    key_bsgk: tf.Tensor,
    value_bsge: tf.Tensor,
    mask_bhts: tf.Tensor | None = None,
    bias_bhts: tf.Tensor | None = None,
    causal: bool = False,
    return_weights: bool = False,
    keep_bhts: tf.Tensor | None = None,
    dropout_rate: float = 0.0,
) -> Output:
    """As the truth. TensorFlow has no fused kernel for attention; grouped heads r = h/g share their key without repeating it."""
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    weights_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal)
    output_bthe = _mix(Dropout.drop(weights_bhts, keep_bhts, dropout_rate), value_bsge)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


@register
class MultiHeadAttention(Configured, keras.layers.Layer):
    """As the truth. Keras layers have a property `output`, so the last kernel is `output_projection`."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        width, bias, dtype = (config.model_width,), config.attention_bias, self.dtype_policy
        self.query = Projection(width, (config.heads, config.key_size), bias, dtype=dtype, name="query")
        self.key = Projection(width, (config.key_value_heads, config.key_size), bias, dtype=dtype, name="key")
        self.value = Projection(width, (config.key_value_heads, config.value_size), bias, dtype=dtype, name="value")
        self.weights_dropout = Dropout(config.attention_dropout_rate, dtype=dtype, name="weights_dropout")
        self.output_projection = Projection((config.heads, config.value_size), width, bias, dtype=dtype, name="output_projection")

    def build(self, input_shape: Any = None) -> None:
        for projection in (self.query, self.key, self.value, self.output_projection):
            projection.build()

    def call(
        self,
        query_btd: tf.Tensor,
        memory_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        bias_bhts: tf.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: tf.Tensor | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.config.model_width)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(query=query_btd.shape, key=memory_bsd.shape, value=memory_bsd.shape)
        query_bthk, (key_bsgk, value_bsge) = self.queries(query_btd), self.keys_and_values(memory_bsd)
        weights_bhts = _weights(query_bthk, key_bsgk, mask_bhts, bias_bhts, causal)
        output_btd = self.output_projection(_mix(self.weights_dropout(weights_bhts, keep_bhts), value_bsge))
        return (output_btd, weights_bhts) if return_weights else output_btd

    def queries(self, query_btd: tf.Tensor) -> tf.Tensor:
        """The queries `b t h k`."""
        return self.query(query_btd)

    def keys_and_values(self, memory_bsd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """As the truth's function."""
        return self.key(memory_bsd), self.value(memory_bsd)

    def queries_keys_and_values(self, x_btd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Of self-attention, all that comes of x."""
        return self.queries(x_btd), *self.keys_and_values(x_btd)

    def attend_cached(self, query_bthk: tf.Tensor, key_bgks: tf.Tensor, value_bgse: tf.Tensor, mask_bhts: tf.Tensor | None) -> tf.Tensor:
        """The rest, in evaluation: the attention to keys and values that lie as they are multiplied, and the output's projection."""
        return self.output_projection(_attended(query_bthk, key_bgks, value_bgse, mask_bhts))


def _weights(
    query_bthk: tf.Tensor, key_bsgk: tf.Tensor, mask_bhts: tf.Tensor | None, bias_bhts: tf.Tensor | None, causal: bool
) -> tf.Tensor:
    batch, target, heads, head_size = keras.ops.shape(query_bthk)
    source, groups = keras.ops.shape(key_bsgk)[1:3]
    scaled_btgrk = tf.reshape(widen(query_bthk) * head_size**-0.5, [batch, target, groups, heads // groups, head_size])
    logits_bgrts = tf.einsum("btgrk,bsgk->bgrts", scaled_btgrk, widen(key_bsgk))
    logits_bhts = tf.reshape(logits_bgrts, [batch, heads, target, source])
    scores = logits_bhts.shape
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
        logits_bhts += widen(bias_bhts)
        hidden = tf.constant(float("-inf"), bias_bhts.dtype)
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > hidden)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source))
    return tf.cast(softmax.softmax(logits_bhts, mask_bhts), query_bthk.dtype)


def _mix(weights_bhts: tf.Tensor, value_bsge: tf.Tensor) -> tf.Tensor:
    # Half types multiply in float32 here too: on a CPU a batched product of halves would also add up in halves.
    batch, heads, target, source = keras.ops.shape(weights_bhts)
    groups, size = value_bsge.shape[2:]
    weights_bgrts = tf.reshape(widen(weights_bhts), [batch, groups, heads // groups, target, source])
    output_btgre = tf.einsum("bgrts,bsge->btgre", weights_bgrts, widen(value_bsge))
    return tf.cast(tf.reshape(output_btgre, [batch, target, heads, size]), value_bsge.dtype)


def _attended(query_bthk: tf.Tensor, key_bgks: tf.Tensor, value_bgse: tf.Tensor, mask_bhts: tf.Tensor | None) -> tf.Tensor:
    """`b t h e`, by two products of matrices for each head of the keys; n are its queries."""
    batch, target, heads, head_size = keras.ops.shape(query_bthk)
    _, groups, source, size = keras.ops.shape(value_bgse)
    scaled_btgrk = tf.reshape(widen(query_bthk) * head_size**-0.5, [batch, target, groups, heads // groups, head_size])
    scaled_bgnk = tf.reshape(tf.transpose(scaled_btgrk, [0, 2, 3, 1, 4]), [batch, groups, heads // groups * target, head_size])
    logits_bhts = tf.reshape(tf.matmul(scaled_bgnk, widen(key_bgks)), [batch, heads, target, source])
    weights_bhts = tf.cast(softmax.softmax(logits_bhts, mask_bhts), query_bthk.dtype)
    weights_bgns = tf.reshape(widen(weights_bhts), [batch, groups, heads // groups * target, source])
    output_bhte = tf.reshape(tf.matmul(weights_bgns, widen(value_bgse)), [batch, heads, target, size])
    return tf.cast(tf.transpose(output_bhte, [0, 2, 1, 3]), value_bgse.dtype)
