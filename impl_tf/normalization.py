"""Layer normalization and root-mean-square normalization (NORM)."""

from typing import TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .framework import Traced, register, sizes
from .precision import upcast_half

__all__ = ["LayerNorm", "norm", "RMSNorm"]  # noqa: RUF022 - the order of the twins


class _Norm(Traced):
    """Parameters: scale `d`, which starts at 0 with one_plus_scale, and offset `d`; both optional.

    Half precision computes in float32 up to and including the offset; with cast_before_scale it
    rounds before the scale. head_size: number of features that are normalized together; None for
    all.
    """

    head_size: int | None = None

    def __init__(
        self,
        width: int,
        epsilon: float,
        offset: bool = True,
        one_plus_scale: bool = False,
        cast_before_scale: bool = False,
        scale: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.width, self.epsilon, self.use_offset, self.use_scale = width, epsilon, offset, scale
        self.one_plus_scale, self.cast_before_scale = one_plus_scale, cast_before_scale

    def build(self, input_shape: object = None) -> None:
        first = "zeros" if self.one_plus_scale else "ones"
        self.scale = self.offset = None
        if self.use_scale:
            self.scale = self.add_weight(shape=(self.width,), initializer=first, name="scale")
        if self.use_offset:
            self.offset = self.add_weight(shape=(self.width,), initializer="zeros", name="offset")

    def heads(self, x_btd: tf.Tensor) -> tf.Tensor:
        """Splits features that are not normalized together (QKNORM)."""
        checks.check_features("x", x_btd.shape, self.width)
        if self.head_size is None:
            return x_btd
        return tf.reshape(x_btd, [*sizes(x_btd)[:2], -1, self.head_size])

    def scaled(self, x_btd: tf.Tensor, factor_bt1: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """`scale x factor + offset` in this dtype."""
        wide = dtype if self.cast_before_scale else x_btd.dtype
        y_btd = tf.cast(x_btd * factor_bt1, wide)
        if self.head_size is not None:
            y_btd = tf.reshape(y_btd, [*sizes(y_btd)[:2], self.width])
        if self.scale is not None:
            y_btd *= tf.cast(self.scale, wide) + (1 if self.one_plus_scale else 0)
        if self.offset is not None:
            y_btd += tf.cast(self.offset, wide)
        return tf.cast(y_btd, dtype)

    def get_config(self) -> dict[str, object]:
        sizes = {"width": self.width, "epsilon": self.epsilon, "offset": self.use_offset}
        scale = {"one_plus_scale": self.one_plus_scale, "cast_before_scale": self.cast_before_scale}
        return {**super().get_config(), **sizes, **scale, "scale": self.use_scale}


@register
class LayerNorm(_Norm):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM).

    The variance is biased and computed in a second pass. one_plus_scale: multiplies by `1 + scale`.
    """

    def call(self, x_btd: tf.Tensor) -> tf.Tensor:
        wide_btd = upcast_half(self.heads(x_btd))
        centred_btd = wide_btd - tf.reduce_mean(wide_btd, axis=-1, keepdims=True)
        variance_bt1 = tf.reduce_mean(tf.square(centred_btd), axis=-1, keepdims=True)
        factor_bt1 = tf.math.rsqrt(variance_bt1 + self.epsilon)
        return self.scaled(centred_btd, factor_bt1, x_btd.dtype)


@register
class RMSNorm(_Norm):
    """`y = scale x / sqrt(mean(x^2) + epsilon) + offset` over d (NORM).

    keras.layers.RMSNormalization has neither offset nor `1 + scale`, and never rounds early.
    """

    def call(self, x_btd: tf.Tensor) -> tf.Tensor:
        wide_btd = upcast_half(self.heads(x_btd))
        square_bt1 = tf.reduce_mean(tf.square(wide_btd), axis=-1, keepdims=True)
        factor_bt1 = tf.math.rsqrt(square_bt1 + self.epsilon)
        return self.scaled(wide_btd, factor_bt1, x_btd.dtype)


Norm: TypeAlias = LayerNorm | RMSNorm


def norm(config: TransformerConfig, width: int | None = None, **kwargs: object) -> Norm:
    """Returns the norm of the config over this width, default the model's."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(
        config.model_width if width is None else width,
        config.epsilon,
        config.norm_offset,
        config.norm_one_plus_scale,
        config.norm_cast_before_scale,
        config.norm_scale,
        **kwargs,
    )


def output_norm(config: TransformerConfig, **kwargs: object) -> Norm | None:
    """Returns the second norm of a sub-layer; only norm_placement "sandwich" has it (RESIDUAL)."""
    if config.norm_placement != "sandwich":
        return None
    return norm(config, config.model_width, **kwargs)


def unchanged(x_btd: tf.Tensor) -> tf.Tensor:
    """Replaces the norm that the first layer may lack (RESIDUAL)."""
    return x_btd
