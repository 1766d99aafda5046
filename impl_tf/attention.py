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
        weights_bhts = _weights(self.query(query_btd), self.key(memory_bsd), mask_bhts, bias_bhts, causal)
        output_bthe = _mix(self.weights_dropout(weights_bhts, keep_bhts), self.value(memory_bsd))
        output_btd = self.output_projection(output_bthe)
        return (output_btd, weights_bhts) if return_weights else output_btd


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
