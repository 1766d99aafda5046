"""Scaled dot-product attention and multi-head attention."""

from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import mask
from .dropout import Dropout
from .framework import Configured, attached_mask, register, sizes
from .kernels.attention import (
    in_chunks,
    mask_logits,
    query_key,
    weights_value,
    zero_empty_rows,
)
from .kernels.unpadding import in_rows
from .normalization import LayerNorm, RMSNorm, norm
from .precision import upcast_half
from .projection import Projection
from .rotary import Rotation, rotated, rotation
from .softmax import soft_cap

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
    window: int = 0,
    scale: float | None = None,
    cap: float | None = None,
) -> Output:
    """`weights = softmax(query key^T / sqrt(k) + bias)`, `output = weights value`.

    window: also hides keys that are as far away as that (WINDOW); 0: none. scale: in place of
    `1 / sqrt(k)`. cap: of the scaled logits, before bias and mask (SOFTCAP). TensorFlow has no
    fused kernel for attention.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, heads, _ = query_bthk.shape
    scores = batch, heads, target, key_bsgk.shape[1]
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, mask_bhts.dtype.name, scores)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, bias_bhts.dtype.name, scores)
    attention = partial(_attention, scale=scale, cap=cap)
    given = query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts, causal, window
    if not return_weights and keep_bhts is None:
        return in_chunks(attention, *given)
    output_bthe, weights_bhts = attention(*given, return_weights, keep_bhts, dropout_rate)
    return (output_bthe, weights_bhts) if return_weights else output_bthe


def _attention(
    query_bthk: tf.Tensor,
    key_bsgk: tf.Tensor,
    value_bsge: tf.Tensor,
    mask_bhts: tf.Tensor | None = None,
    bias_bhts: tf.Tensor | None = None,
    causal: bool = False,
    window: int = 0,
    return_weights: bool = False,
    keep_bhts: tf.Tensor | None = None,
    dropout_rate: float = 0.0,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The output, of all queries together, and the weights or None.

    A query that may attend to nothing gets finite logits, which avoid NaN; its output is zeroed.
    """
    (_, target, _, head_size), source = sizes(query_bthk), sizes(key_bsgk)[1]
    scale = head_size**-0.5 if scale is None else scale
    logits_bhts = query_key(upcast_half(query_bthk) * scale, key_bsgk)
    if cap is not None:
        logits_bhts = soft_cap(logits_bhts, cap)
    if bias_bhts is not None:
        logits_bhts += upcast_half(bias_bhts)
        allowed_bhts = bias_bhts > tf.constant(float("-inf"), bias_bhts.dtype)
        mask_bhts = mask.combine_masks(mask_bhts, allowed_bhts)
    if causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source))
    if window:
        mask_bhts = mask.combine_masks(mask_bhts, mask.window_mask(target, source, window))
    logits_bhts, present_bht1 = mask_logits(logits_bhts, mask_bhts)
    weights_bhts = tf.cast(tf.nn.softmax(logits_bhts), query_bthk.dtype)
    dropped_bhts = Dropout.drop(weights_bhts, keep_bhts, dropout_rate)
    output_bthe = weights_value(dropped_bhts, value_bsge)
    present_bth1 = None if present_bht1 is None else tf.transpose(present_bht1, [0, 2, 1, 3])
    output_bthe = tf.cast(zero_empty_rows(output_bthe, present_bth1), value_bsge.dtype)
    return output_bthe, (zero_empty_rows(weights_bhts, present_bht1) if return_weights else None)


@register
class MultiHeadAttention(Configured):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`.

    By config queries and keys are normalised (QKNORM), then rotated. layer: the index of the layer
    whose self-attention it is, which decides rotation and window; None, cross-attention, has
    neither. rotation: by default that of the positions 0 .. t-1.

    W^O and b^O are those of `output_projection`, since Keras layers have a property `output`. Keys
    that Keras masked (Masking, mask_zero) are not attended to.
    """

    def __init__(self, config: TransformerConfig, layer: int | None = 0, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.layer, self.kind = layer, None if layer is None else config.layer_kind(layer)
        width, dtype = (config.model_width,), self.dtype_policy
        bias, groups = config.query_key_value_bias, config.key_value_heads
        self.query = Projection(
            width, (config.heads, config.key_size), bias, dtype=dtype, name="query"
        )
        self.key = Projection(width, (groups, config.key_size), bias, dtype=dtype, name="key")
        self.value = Projection(width, (groups, config.value_size), bias, dtype=dtype, name="value")
        if config.query_key_norm != "none":
            for name, heads in (("query_norm", config.heads), ("key_norm", groups)):
                size = config.key_size * (heads if config.query_key_norm == "width" else 1)
                setattr(self, name, norm(config, size, dtype=dtype, name=name))
        self.weights_dropout = Dropout(
            config.attention_dropout_rate, dtype=dtype, name="weights_dropout"
        )
        self.output_projection = Projection(
            (config.heads, config.value_size),
            width,
            config.attention_output_bias,
            dtype=dtype,
            name="output_projection",
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
        rotation: Rotation | None = None,
    ) -> Output:
        checks.check_features("query", query_btd.shape, self.config.model_width)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        if (mask_bs := attached_mask(memory_bsd)) is not None:
            mask_bhts = mask.combine_masks(mask_bhts, mask.padding_mask(mask_bs))
        query_bthk, key_bsgk, value_bsge = self.unrotated(query_btd, memory_bsd)
        query_bthk, key_bsgk = self.rotate(query_bthk, key_bsgk, rotation)
        window = 0 if self.kind is None else self.kind.window
        rest = mask_bhts, bias_bhts, causal, return_weights, keep_bhts, training, window
        return self.attend(query_bthk, key_bsgk, value_bsge, *rest)

    def queries(self, query_btd: tf.Tensor) -> tf.Tensor:
        """`x W^Q + b^Q`, normalised by config, `b t h k`."""
        return self.normalised("query", self.query(query_btd))

    def keys_and_values(self, memory_bsd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The part that no query changes: `m W^K + b^K`, normalised by config, `b s g k`;
        `m W^V + b^V`, `b s g e`."""
        return self.normalised("key", self.key(memory_bsd)), self.value(memory_bsd)

    def unrotated(
        self, query_btd: tf.Tensor, memory_bsd: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries of one input, keys and values of another or the same."""
        return self.queries(query_btd), *self.keys_and_values(memory_bsd)

    def normalised(self, name: str, x_bthk: tf.Tensor) -> tf.Tensor:
        """Queries or keys, normalised by config over the features of a head, or of all heads."""
        if self.config.query_key_norm == "none":
            return x_bthk
        own: LayerNorm | RMSNorm = getattr(self, f"{name}_norm")
        shape = sizes(x_bthk)
        return tf.reshape(own(tf.reshape(x_bthk, [shape[0], -1, own.width])), shape)

    def rotate(
        self, query_bthk: tf.Tensor, key_bsgk: tf.Tensor, turned: Rotation | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Queries and keys by position, if the layer rotates them."""
        if self.kind is None or not self.kind.rotary:
            return query_bthk, key_bsgk
        checks.check_same_length(query=query_bthk.shape, memory=key_bsgk.shape)
        if turned is None:
            position_1t = tf.range(sizes(query_bthk)[1])[tf.newaxis]
            turned = rotation(self.config, self.kind, position_1t, query_bthk.dtype)
        layout = self.config.rotary_layout
        return rotated(query_bthk, turned, layout), rotated(key_bsgk, turned, layout)

    def project(
        self, x_btd: tf.Tensor, rotation: Rotation | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries, keys and values of self-attention, rotated by config."""
        query_bthk, key_btgk, value_btge = self.unrotated(x_btd, x_btd)
        return *self.rotate(query_bthk, key_btgk, rotation), value_btge

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
        window: int = 0,
    ) -> Output:
        """The attention of these queries to these keys and values, and the output's projection.

        window: of the layer, if neighbours among the keys are neighbours in the text.
        """
        rest = bias_bhts, causal, return_weights, keep_bhts, training, window
        # In a run without padding the input is flat: only the attention itself sees rows.
        output_bthe, weights_bhts = in_rows(
            self._attend, query_bthk, key_bsgk, value_bsge, mask_bhts, *rest
        )
        output_btd = self.output_projection(output_bthe)
        return (output_btd, weights_bhts) if return_weights else output_btd

    def _attend(
        self,
        query_bthk: tf.Tensor,
        key_bsgk: tf.Tensor,
        value_bsge: tf.Tensor,
        mask_bhts: tf.Tensor | None,
        bias_bhts: tf.Tensor | None,
        causal: bool,
        return_weights: bool,
        keep_bhts: tf.Tensor | None,
        training: bool | None,
        window: int,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The output, and the weights or None; in training without a keep mask one is drawn."""
        if keep_bhts is None:
            batch, target, heads, _ = sizes(query_bthk)
            shape = batch, heads, target, sizes(key_bsgk)[1]
            keep_bhts = self.weights_dropout.draw(shape, training)
        arguments = mask_bhts, bias_bhts, causal, return_weights, keep_bhts
        attended = scaled_dot_product_attention(
            query_bthk,
            key_bsgk,
            value_bsge,
            *arguments,
            self.weights_dropout.rate,
            window,
            self.config.score_scale,
            self.config.score_cap,
        )
        return attended if return_weights else (attended, None)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer": self.layer}
