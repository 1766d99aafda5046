"""Scaled dot-product attention and multi-head attention."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import mask, softmax
from .dropout import Dropout
from .fast.attention import chunk_length, in_chunks
from .fast.packing import Packing, pack, unpack
from .framework import Configured, attached_mask, keras, register
from .precision import upcast_half
from .projection import Projection

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

Drop: TypeAlias = Callable[[tf.Tensor], tf.Tensor]  # dropout of the weights
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
    drop: Drop | None = None,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    TensorFlow has no fused kernel for attention. Many queries are taken in chunks, unless their weights are returned or dropped, so that
    memory grows with s, not with t s. drop: the dropout of the weights, where there is no keep mask.
    """
    if keep_bhts is not None:
        drop = functools.partial(Dropout.drop, keep=keep_bhts, rate=dropout_rate)
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = batch, heads, target, key_bsgk.shape[1]
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
    key_bgks, value_bgse = (
        tf.transpose(key_bsgk, [0, 2, 3, 1]),
        tf.transpose(value_bsge, [0, 2, 1, 3]),
    )
    if (
        not return_weights
        and drop is None
        and (length := chunk_length(query_bthk, key_bsgk.shape[1]))
    ):
        return in_chunks(
            attend_by_head, length, query_bthk, key_bgks, value_bgse, mask_bhts, bias_bhts, causal
        )
    if causal:
        mask_bhts = mask.combine_masks(
            mask_bhts, mask.causal_mask(*(keras.ops.shape(x)[1] for x in (query_bthk, key_bsgk)))
        )
    return attend_by_head(
        query_bthk, key_bgks, value_bgse, mask_bhts, bias_bhts, drop, return_weights
    )


def attend_by_head(
    query_bthk: tf.Tensor,
    key_bgks: tf.Tensor,
    value_bgse: tf.Tensor,
    mask_bhts: tf.Tensor | None = None,
    bias_bhts: tf.Tensor | None = None,
    drop: Drop | None = None,
    return_weights: bool = False,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`, of keys and values as they are multiplied.

    Two matrix products for each key head: the queries of the heads that share it are the rows n of one product, and no key is repeated.
    Half precision is multiplied in float32 here too: on a CPU a batched product would also be summed in half precision. A query without a
    key has the mean of the values until its output is zeroed, which is a smaller array than the weights.
    """
    batch, target, heads, head_size = keras.ops.shape(query_bthk)
    _, groups, source, size = keras.ops.shape(value_bgse)
    scaled_bhtk = tf.transpose(upcast_half(query_bthk) * head_size**-0.5, [0, 2, 1, 3])
    scaled_bgnk = tf.reshape(scaled_bhtk, [batch, groups, heads // groups * target, head_size])
    logits_bhts = tf.reshape(
        tf.matmul(scaled_bgnk, upcast_half(key_bgks)), [batch, heads, target, source]
    )
    if bias_bhts is not None:
        logits_bhts += upcast_half(bias_bhts)
        mask_bhts = mask.combine_masks(
            mask_bhts, bias_bhts > tf.constant(float("-inf"), bias_bhts.dtype)
        )
    logits_bhts, present_bht1 = softmax.mask_logits(logits_bhts, mask_bhts)
    weights_bhts = tf.cast(tf.nn.softmax(logits_bhts), query_bthk.dtype)
    dropped_bhts = weights_bhts if drop is None else drop(weights_bhts)
    dropped_bgns = tf.reshape(
        upcast_half(dropped_bhts), [batch, groups, heads // groups * target, source]
    )
    output_bhte = tf.reshape(
        tf.matmul(dropped_bgns, upcast_half(value_bgse)), [batch, heads, target, size]
    )
    output_bthe = tf.transpose(softmax.zero_empty_rows(output_bhte, present_bht1), [0, 2, 1, 3])
    output_bthe = tf.cast(output_bthe, value_bgse.dtype)
    return (
        (output_bthe, softmax.zero_empty_rows(weights_bhts, present_bht1))
        if return_weights
        else output_bthe
    )


@register
class MultiHeadAttention(Configured):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`, `output = sum_i head_i W_i^O + b^O`.

    Keras layers have a property `output`, so W^O and b^O are those of `output_projection`. Keys that Keras masked (Masking, mask_zero) are
    not attended to.
    packing, memory_packing: where query and memory are packed, and so is the output; masks, bias and weights are those of rows.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        width, bias, dtype = (config.model_width,), config.attention_bias, self.dtype_policy
        self.query = Projection(
            width, (config.heads, config.key_size), bias, dtype=dtype, name="query"
        )
        self.key = Projection(
            width, (config.key_value_heads, config.key_size), bias, dtype=dtype, name="key"
        )
        self.value = Projection(
            width, (config.key_value_heads, config.value_size), bias, dtype=dtype, name="value"
        )
        self.weights_dropout = Dropout(
            config.attention_dropout_rate, dtype=dtype, name="weights_dropout"
        )
        self.output_projection = Projection(
            (config.heads, config.value_size), width, bias, dtype=dtype, name="output_projection"
        )

    def call(
        self,
        query_btd: tf.Tensor,
        memory_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        bias_bhts: tf.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: tf.Tensor | None = None,
        training: bool | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.config.model_width)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        if (mask_bs := attached_mask(memory_bsd)) is not None:
            mask_bhts = mask.combine_masks(mask_bhts, mask.padding_mask(mask_bs))
        query_bthk = unpack(self.queries(query_btd), packing)
        key_bsgk, value_bsge = (unpack(x, memory_packing) for x in self.keys_and_values(memory_bsd))
        return self.attend(
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            keep_bhts,
            training,
            packing,
        )

    def queries(self, query_btd: tf.Tensor) -> tf.Tensor:
        """`x W^Q + b^Q`, `b t h k`."""
        return self.query(query_btd)

    def keys_and_values(self, memory_bsd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`m W^K + b^K`, `b s g k`, and `m W^V + b^V`, `b s g e`: the part that no query changes, so that it is computed once."""
        return self.key(memory_bsd), self.value(memory_bsd)

    def project(self, x_btd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries, keys and values of self-attention."""
        return self.queries(x_btd), *self.keys_and_values(x_btd)

    def attend(
        self,
        query_bthk: tf.Tensor,
        key_bsgk: tf.Tensor,
        value_bsge: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        bias_bhts: tf.Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        keep_bhts: tf.Tensor | None = None,
        training: bool | None = None,
        packing: Packing | None = None,
    ) -> Output:
        """The rest: the attention of these queries to these keys and values, and the output's projection."""
        drops = keep_bhts is not None or (training and self.weights_dropout.rate)
        drop = (
            (lambda weights_bhts: self.weights_dropout(weights_bhts, keep_bhts, training=training))
            if drops
            else None
        )
        attended = scaled_dot_product_attention(
            query_bthk,
            key_bsgk,
            value_bsge,
            mask_bhts,
            bias_bhts,
            causal,
            return_weights,
            drop=drop,
        )
        if return_weights:
            output_bthe, weights_bhts = attended
            return self.output_projection(pack(output_bthe, packing)), weights_bhts
        return self.output_projection(pack(attended, packing))
