"""Scaled dot-product attention and multi-head attention."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import mask, softmax
from .dropout import Dropout
from .framework import Configured, keras, register, widen
from .projection import Projection

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

AT_ONCE = {"CPU": 1 << 22, "GPU": 1 << 28}  # weights that are computed together: on a CPU as many as its cache holds
Drop: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
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
    """As the truth. TensorFlow has no fused kernel for attention; grouped heads share their key without repeating it.

    Where the weights would be many and nobody asks for them, the queries take their turns, so that memory grows with s, not with t s.
    """
    drop = None if keep_bhts is None else functools.partial(Dropout.drop, keep=keep_bhts, rate=dropout_rate)
    return _attention(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, drop)


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
        training: bool | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.config.model_width)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(query=query_btd.shape, key=memory_bsd.shape, value=memory_bsd.shape)
        query_bthk, (key_bsgk, value_bsge) = self.queries(query_btd), self.keys_and_values(memory_bsd)
        drops = keep_bhts is not None or (training and self.weights_dropout.rate)
        drop = (lambda weights_bhts: self.weights_dropout(weights_bhts, keep_bhts)) if drops else None
        attended = _attention(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, return_weights, drop)
        if return_weights:
            output_bthe, weights_bhts = attended
            return self.output_projection(output_bthe), weights_bhts
        return self.output_projection(attended)

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
        return self.output_projection(_attended(query_bthk, key_bgks, value_bgse, mask_bhts)[0])


def _attention(
    query_bthk: tf.Tensor,
    key_bsgk: tf.Tensor,
    value_bsge: tf.Tensor,
    mask_bhts: tf.Tensor | None,
    bias_bhts: tf.Tensor | None,
    causal: bool,
    return_weights: bool,
    drop: Drop | None,
) -> Output:
    """Of keys and values as they are projected."""
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = batch, heads, target, key_bsgk.shape[1]
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
    key_bgks, value_bgse = tf.transpose(key_bsgk, [0, 2, 3, 1]), tf.transpose(value_bsge, [0, 2, 1, 3])
    if None not in scores and not return_weights and drop is None:
        at_once = AT_ONCE["GPU" if tf.config.list_physical_devices("GPU") else "CPU"]
        turn = max(1, at_once // max(1, batch * heads * scores[3]))
        if turn < target:
            return _in_turns(turn, query_bthk, key_bgks, value_bgse, mask_bhts, bias_bhts, causal)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(*(keras.ops.shape(x)[1] for x in (query_bthk, key_bsgk))))
    output_bthe, weights_bhts = _attended(query_bthk, key_bgks, value_bgse, mask_bhts, bias_bhts, drop)
    return (output_bthe, weights_bhts()) if return_weights else output_bthe


def _attended(
    query_bthk: tf.Tensor,
    key_bgks: tf.Tensor,
    value_bgse: tf.Tensor,
    mask_bhts: tf.Tensor | None,
    bias_bhts: tf.Tensor | None = None,
    drop: Drop | None = None,
) -> tuple[tf.Tensor, Callable[[], tf.Tensor]]:
    """The output, and what gives the weights, by two products of matrices for each head of the keys; n are its queries.

    Half types multiply in float32 here too: on a CPU a batched product of halves would also add up in halves. A query without a key has
    the mean of the values until its output is zeroed, which is a smaller array than the weights.
    """
    batch, target, heads, head_size = keras.ops.shape(query_bthk)
    _, groups, source, size = keras.ops.shape(value_bgse)
    scaled_bhtk = tf.transpose(widen(query_bthk) * head_size**-0.5, [0, 2, 1, 3])
    scaled_bgnk = tf.reshape(scaled_bhtk, [batch, groups, heads // groups * target, head_size])
    logits_bhts = tf.reshape(tf.matmul(scaled_bgnk, widen(key_bgks)), [batch, heads, target, source])
    if bias_bhts is not None:
        logits_bhts += widen(bias_bhts)
        mask_bhts = mask.combine_masks(mask_bhts, bias_bhts > tf.constant(float("-inf"), bias_bhts.dtype))
    shown_bhts, present_bht1 = softmax.hide(logits_bhts, mask_bhts)
    weights_bhts = tf.cast(tf.nn.softmax(shown_bhts), query_bthk.dtype)
    dropped_bhts = weights_bhts if drop is None else drop(weights_bhts)
    dropped_bgns = tf.reshape(widen(dropped_bhts), [batch, groups, heads // groups * target, source])
    output_bhte = tf.reshape(tf.matmul(dropped_bgns, widen(value_bgse)), [batch, heads, target, size])
    output_bthe = tf.transpose(softmax.zero(output_bhte, present_bht1), [0, 2, 1, 3])
    return tf.cast(output_bthe, value_bgse.dtype), lambda: softmax.zero(weights_bhts, present_bht1)


def _in_turns(
    turn: int,
    query_bthk: tf.Tensor,
    key_bgks: tf.Tensor,
    value_bgse: tf.Tensor,
    mask_bhts: tf.Tensor | None,
    bias_bhts: tf.Tensor | None,
    causal: bool,
) -> tf.Tensor:
    """So many queries at once; the backward pass computes their weights again."""
    target, source = query_bthk.shape[1], value_bgse.shape[2]

    def part(x: tf.Tensor, axis: int, start: tf.Tensor | int, count: int) -> tf.Tensor:
        """That XLA takes only where the size is no tensor, as that of a Python slice would be."""
        return tf.slice(x, [start if at == axis else 0 for at in range(4)], [*x.shape[:axis], count, *x.shape[axis + 1 :]])

    def rows(x_bhts: tf.Tensor | None, start: tf.Tensor | int, count: int) -> tf.Tensor | None:
        return x_bhts if x_bhts is None or x_bhts.shape[2] == 1 else part(x_bhts, 2, start, count)

    def attend(start: tf.Tensor | int, count: int) -> tf.Tensor:
        mask_bhcs = rows(mask_bhts, start, count)
        if causal:
            last_c1 = (start + tf.range(count) + source - target)[:, tf.newaxis]
            mask_bhcs = mask.combine_masks(mask_bhcs, (tf.range(source) <= last_c1)[tf.newaxis, tf.newaxis])

        @tf.recompute_grad
        def attended(query_bchk: tf.Tensor, key_bgks: tf.Tensor, value_bgse: tf.Tensor, *bias_bhcs: tf.Tensor) -> tf.Tensor:
            return _attended(query_bchk, key_bgks, value_bgse, mask_bhcs, *bias_bhcs)[0]

        bias_bhcs = () if bias_bhts is None else (rows(bias_bhts, start, count),)
        return attended(part(query_bthk, 1, start, count), key_bgks, value_bgse, *bias_bhcs)

    whole = target - target % turn
    output_nbche = tf.map_fn(lambda start: attend(start, turn), tf.range(0, whole, turn), fn_output_signature=value_bgse.dtype)
    output_bnche = tf.transpose(output_nbche, [1, 0, 2, 3, 4])
    output_bthe = tf.reshape(output_bnche, [query_bthk.shape[0], whole, *output_nbche.shape[3:]])
    return output_bthe if whole == target else tf.concat([output_bthe, attend(whole, target - whole)], axis=1)
