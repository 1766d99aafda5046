"""Scaled dot-product attention and multi-head attention."""

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.scores import Scores

from . import mask
from .dropout import Dropout
from .framework import Configured, attached_mask, register, sizes
from .kernels.attention import in_chunks, mask_logits, query_key, weights_value, zero_empty_rows
from .kernels.unpadding import in_rows
from .normalization import Norm, norm
from .precision import upcast_half
from .projection import Projection
from .rotary import Rotation, rotated
from .softmax import soft_cap
from .values import Drop, Heads

__all__ = ["MultiHeadAttention", "attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query_bthk: tf.Tensor,
    key_bsgk: tf.Tensor,
    mask_bhts: tf.Tensor | None = None,
    scores: Scores = Scores(),
    sink_h: tf.Tensor | None = None,
) -> tf.Tensor:
    """`softmax(query key^T / sqrt(k))`: how much each query attends to each key, `b h t s`.

    mask_bhts: boolean, True = may attend (MASK), or floating, added to the scores, where -inf hides
    a key. sink_h: see `beside_sink`. Fully masked queries have zero weights (EMPTY). Raises
    ValueError if the shapes do not match.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, key_bsgk.shape)
    scores_bhts = scaled_scores(query_bthk, key_bsgk, scores)
    scores_bhts, present_bht1 = masked(scores_bhts, mask_bhts, scores)
    weights_bhts = tf.cast(beside_sink(scores_bhts, sink_h), query_bthk.dtype)
    return zero_empty_rows(weights_bhts, present_bht1)


def scaled_dot_product_attention(
    heads: Heads, mask_bhts: tf.Tensor | None = None, scores: Scores = Scores(), drop: Drop = Drop()
) -> tf.Tensor:
    """`attention_weights(query, key) value`: the weighted mean of the values, `b t h e`.

    TensorFlow has no fused attention kernel: without dropout, long sequences are computed in chunks
    of queries. Fully masked rows are zeroed in the output, which is smaller than the weights. Mask,
    scores and errors: as in `attention_weights`.
    """
    checks.check_attention(heads.query_bthk.shape, heads.key_bsgk.shape, heads.value_bsge.shape)

    def attention(heads: Heads, mask_bhts: tf.Tensor | None, scores: Scores) -> tf.Tensor:
        scores_bhts = scaled_scores(heads.query_bthk, heads.key_bsgk, scores)
        scores_bhts, present_bht1 = masked(scores_bhts, mask_bhts, scores)
        weights_bhts = tf.cast(beside_sink(scores_bhts, heads.sink_h), heads.query_bthk.dtype)
        dropped_bhts = Dropout.drop(weights_bhts, drop.keep_bhts, drop.rate)
        output_bthe = weights_value(dropped_bhts, heads.value_bsge)
        present_bth1 = None if present_bht1 is None else tf.transpose(present_bht1, [0, 2, 1, 3])
        return zero_empty_rows(output_bthe, present_bth1)

    if drop.keep_bhts is None:
        return in_chunks(attention, heads, mask_bhts, scores)
    return attention(heads, mask_bhts, scores)


def scaled_scores(
    query_bthk: tf.Tensor, key_bsgk: tf.Tensor, scores: Scores = Scores()
) -> tf.Tensor:
    """`query key^T / sqrt(k)`, or times `score_scale` (SCALE): `b h t s`, at least float32.

    Includes the soft cap (SOFTCAP).
    """
    scale = query_bthk.shape[3] ** -0.5 if scores.scale is None else scores.scale
    scores_bhts = query_key(upcast_half(query_bthk) * scale, key_bsgk)
    return scores_bhts if scores.cap is None else soft_cap(scores_bhts, scores.cap)


def masked(
    scores_bhts: tf.Tensor, mask_bhts: tf.Tensor | None, scores: Scores = Scores()
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Adds a floating mask to the scores; sets keys hidden by mask, CAUSAL or WINDOW to -inf.

    Also returns which queries see any key, `b h t 1`, or None if all do. Scores of fully masked
    queries stay finite to avoid NaN; the caller zeroes their outputs.
    """
    if mask_bhts is not None:
        checks.check_attention_mask(mask_bhts.shape, mask_bhts.dtype.name, scores_bhts.shape)
        if mask_bhts.dtype.name != "bool":
            scores_bhts += upcast_half(mask_bhts)
            mask_bhts = mask_bhts > tf.constant(float("-inf"), mask_bhts.dtype)
    target, source = sizes(scores_bhts)[2:]
    if scores.causal:
        mask_bhts = mask.combine_masks(mask_bhts, mask.causal_mask(target, source))
    if scores.window:
        near_11ts = mask.window_mask(target, source, scores.window)
        mask_bhts = mask.combine_masks(mask_bhts, near_11ts)
    return mask_logits(scores_bhts, mask_bhts)


def beside_sink(scores_bhts: tf.Tensor, sink_h: tf.Tensor | None) -> tf.Tensor:
    """`softmax([scores, sink])` without the sink's share, `b h t s`, which is never masked (SINK).

    A sink is a learned score without a value, so that a head can attend to nothing.
    """
    if sink_h is None:
        return tf.nn.softmax(scores_bhts)
    checks.check_sink(sink_h.shape, scores_bhts.shape[1])
    sink_h11 = tf.cast(sink_h, scores_bhts.dtype)[:, tf.newaxis, tf.newaxis]
    sink_bht1 = tf.broadcast_to(sink_h11, [*sizes(scores_bhts)[:3], 1])
    return tf.nn.softmax(tf.concat([scores_bhts, sink_bht1], axis=-1))[..., :-1]


def clipped(x_bthk: tf.Tensor, limit: float | None) -> tf.Tensor:
    """`min(max(x, -limit), limit)` for queries, keys and values; None clips nothing (CLIP)."""
    return x_bthk if limit is None else tf.clip_by_value(x_bthk, -limit, limit)


@register
class MultiHeadAttention(Configured):
    """`head_i = attention(x W_i^Q + b_i^Q, m W_i^K + b_i^K, m W_i^V + b_i^V)`,
    `output = sum_i head_i W_i^O + b^O`: `b t d`.

    Queries and keys are normalized if the config sets query_key_norm (QKNORM), then rotated
    (ROTARY). W^O and b^O belong to `output_projection`, since Keras reserves `output`, as it does
    `weights`. Keys masked by Keras (Masking, mask_zero) are hidden. When calling `attend` outside a
    layer call, pass `training`. scores: default, those of the first layer.
    """

    def __init__(
        self, config: TransformerConfig, scores: Scores | None = None, **kwargs: object
    ) -> None:
        super().__init__(config, **kwargs)
        self.scores = config.scores(0) if scores is None else Scores(*scores)
        width, dtype = (config.model_width,), self.dtype_policy
        bias, groups, size = config.query_key_value_bias, config.key_value_heads, config.key_size
        self.query = Projection(width, (config.heads, size), bias, dtype=dtype, name="query")
        self.key = Projection(width, (groups, size), bias, dtype=dtype, name="key")
        self.value = Projection(width, (groups, config.value_size), bias, dtype=dtype, name="value")
        self.query_norm = self.key_norm = self.sink = None
        if config.query_key_norm != "none":
            shared = config.query_key_norm == "head"
            heads, groups = (1, 1) if shared else (config.heads, groups)
            own = config.of_query_key_norm
            self.query_norm = norm(own, heads * size, dtype=dtype, name="query_norm")
            self.key_norm = norm(own, groups * size, dtype=dtype, name="key_norm")
            if config.query_key_norm == "each_head":
                self.query_norm.head_size = self.key_norm.head_size = size
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

    def build(self, input_shape: object = None) -> None:
        super().build(input_shape)
        if self.scores.sink:
            shape = (self.config.heads,)
            self.sink = self.add_weight(shape=shape, initializer="zeros", name="sink")

    def call(
        self,
        query_btd: tf.Tensor,
        memory_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        rotation: Rotation | None = None,
        keep_bhts: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        checks.check_features("query", query_btd.shape, self.config.model_width)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        if (mask_bs := attached_mask(memory_bsd)) is not None:
            mask_bhts = mask.combine_masks(mask_bhts, mask.padding_mask(mask_bs))
        heads = self.project(query_btd, memory_bsd, rotation)
        return self.attend(heads, mask_bhts, keep_bhts, training)

    def project(
        self, query_btd: tf.Tensor, memory_bsd: tf.Tensor, rotation: Rotation | None = None
    ) -> Heads:
        """Projects x to queries, and m to keys and values; normalizes, rotates queries and keys.

        Raises ValueError if there is a rotation and the two lengths differ.
        """
        if rotation is not None:
            checks.check_same_length(query=query_btd.shape, memory=memory_bsd.shape)
        key_bsgk, value_bsge = self.keys_and_values(memory_bsd, rotation)
        return Heads(self.queries(query_btd, rotation), key_bsgk, value_bsge, self.sink)

    def queries(self, query_btd: tf.Tensor, rotation: Rotation | None = None) -> tf.Tensor:
        """`x W^Q + b^Q`, normalized and rotated: `b t h k`."""
        return self.query_key_norm(self.query(query_btd), self.query_norm, rotation)

    def keys_and_values(
        self, memory_bsd: tf.Tensor, rotation: Rotation | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`m W^K + b^K`, normalized and rotated, and `m W^V + b^V`: `b s g k` and `b s g e`."""
        key_bsgk = self.query_key_norm(self.key(memory_bsd), self.key_norm, rotation)
        return key_bsgk, clipped(self.value(memory_bsd), self.config.query_key_value_clip)

    def query_key_norm(
        self, x_bthk: tf.Tensor, norm: Norm | None, rotation: Rotation | None = None
    ) -> tf.Tensor:
        """Normalizes queries or keys per head or over all heads (QKNORM), clips (CLIP) and rotates
        (ROTARY).
        """
        layout, after = self.config.rotary_layout, self.config.query_key_norm_after_rotation
        limit = self.config.query_key_value_clip
        x_bthk = rotated(clipped(x_bthk, limit), rotation, layout) if after else x_bthk
        if norm is not None:
            shape = sizes(x_bthk)
            x_bthk = tf.reshape(norm(tf.reshape(x_bthk, [shape[0], -1, norm.width])), shape)
        return x_bthk if after else rotated(clipped(x_bthk, limit), rotation, layout)

    def attend(
        self,
        heads: Heads,
        mask_bhts: tf.Tensor | None = None,
        keep_bhts: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`sum_i attention(head_i) W_i^O + b^O`: `b t d`."""
        return self.output_projection(self.mean(heads, mask_bhts, keep_bhts, training))

    @in_rows  # unpacks flattened tokens into rows for this step only
    def mean(
        self,
        heads: Heads,
        mask_bhts: tf.Tensor | None = None,
        keep_bhts: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`attention(head_i)` for every head, `b t h e`."""
        if keep_bhts is None:
            batch, target, count, _ = sizes(heads.query_bthk)
            shape = batch, count, target, sizes(heads.key_bsgk)[1]
            keep_bhts = self.weights_dropout.draw(shape, training)
        drop = Drop(keep_bhts, self.weights_dropout.rate)
        return scaled_dot_product_attention(heads, mask_bhts, self.scores, drop)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "scores": list(self.scores)}
