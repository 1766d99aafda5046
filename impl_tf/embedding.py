"""Token embedding and the logits that invert it."""

from typing import Any

import tensorflow as tf

from reference_numpy import checks

from .backend import keras, register, widen
from .projection import Projection

__all__ = ["Embedding", "Logits"]


@register
class Embedding(keras.layers.Layer):
    """As the truth; ids outside the table are refused where their values are known, that is outside a `tf.function`.

    `tf.gather` would give zeros for them on a GPU. `scale` multiplies by sqrt(d).
    """

    def __init__(self, vocabulary: int, width: int, scale: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary, self.width, self.scale = vocabulary, width, scale

    def build(self, input_shape: Any = None) -> None:
        normal = keras.initializers.RandomNormal(stddev=self.width**-0.5)
        self.table = self.add_weight(shape=(self.vocabulary, self.width), initializer=normal, name="table")

    def check_tokens(self, token: Any, **_: Any) -> None:
        """Raises ValueError on ids outside the table, other dtypes and other axes."""
        bounds = ()
        if not tf.is_symbolic_tensor(token):
            token = token.numpy() if tf.is_tensor(token) else token
            bounds = (int(token.min()), int(token.max())) if token.dtype.kind in "iu" and token.size else ()
        name = token.dtype.name
        checks.check_tokens("token", tuple(token.shape), name, self.vocabulary, *bounds)

    def call(self, token: tf.Tensor) -> tf.Tensor:
        self.check_tokens(token)
        if token.dtype.is_integer:
            x_btd = tf.gather(self.table.value, token if token.dtype in (tf.int32, tf.int64) else tf.cast(token, tf.int64))
        else:
            x_btd = tf.tensordot(token, self.table, axes=1)
        return tf.cast(widen(x_btd) * self.width**0.5, x_btd.dtype) if self.scale else x_btd

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "vocabulary": self.vocabulary, "width": self.width, "scale": self.scale}


@register
class Logits(Projection):
    """As the truth; with `tied` the layer has no kernel and is called with the embedding's table."""

    def __init__(self, width: int, vocabulary: int, bias: bool, tied: bool = False, **kwargs: Any) -> None:
        super().__init__((width,), (vocabulary,), bias, **kwargs)
        self.tied = tied
