"""Layer normalisation."""

from typing import Any

import tensorflow as tf

from reference_numpy import checks

from .framework import Traced, register
from .precision import upcast_half

__all__ = ["LayerNorm"]


@register
class LayerNorm(Traced):
    """`y = scale (x - mean) / sqrt(variance + epsilon) + offset` over d (NORM).

    The variance is biased and computed in a second pass; half precision is computed in float32 up
    to and with the offset. Parameters: scale `d`, offset `d`, which Keras calls gamma and beta.
    """

    def __init__(self, width: int, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width, self.epsilon = width, epsilon

    def build(self, input_shape: Any = None) -> None:
        self.scale = self.add_weight(shape=(self.width,), initializer="ones", name="scale")
        self.offset = self.add_weight(shape=(self.width,), initializer="zeros", name="offset")

    def call(self, x_btd: tf.Tensor) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.width)
        wide_btd = upcast_half(x_btd)
        centred_btd = wide_btd - tf.reduce_mean(wide_btd, axis=-1, keepdims=True)
        variance_bt1 = tf.reduce_mean(tf.square(centred_btd), axis=-1, keepdims=True)
        factor_btd = tf.math.rsqrt(variance_bt1 + self.epsilon) * upcast_half(self.scale)
        return tf.cast(centred_btd * factor_btd + upcast_half(self.offset), x_btd.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "epsilon": self.epsilon}
