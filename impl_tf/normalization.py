"""Layer normalisation."""

from typing import Any

import tensorflow as tf

from reference_numpy import checks

from .framework import SameShape, keras, register, widen

__all__ = ["LayerNorm"]


@register
class LayerNorm(SameShape, keras.layers.Layer):
    """As the truth."""

    def __init__(self, width: int, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width, self.epsilon = width, epsilon

    def build(self, input_shape: Any = None) -> None:
        self.scale = self.add_weight(shape=(self.width,), initializer="ones", name="scale")
        self.offset = self.add_weight(shape=(self.width,), initializer="zeros", name="offset")

    def call(self, x_btd: tf.Tensor) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.width)
        wide_btd = widen(x_btd)
        centred_btd = wide_btd - tf.reduce_mean(wide_btd, axis=-1, keepdims=True)
        variance_bt1 = tf.reduce_mean(tf.square(centred_btd), axis=-1, keepdims=True)
        factor_btd = tf.math.rsqrt(variance_bt1 + self.epsilon) * widen(self.scale)
        return tf.cast(centred_btd * factor_btd + widen(self.offset), x_btd.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "epsilon": self.epsilon}
