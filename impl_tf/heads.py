"""The heads of encoder-only models: pooler, classifier and masked-language head (HEADS)."""

from collections.abc import Sequence

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout
from .embedding import Logits
from .feed_forward import activation
from .framework import Configured, keras, register
from .normalization import norm
from .precision import upcast_half
from .projection import Projection

__all__ = ["Classifier", "MaskedLanguageHead", "Pooler"]


@register
class Pooler(Projection):
    """`y = activation(x_0 W + b)`, `b r`, where x_0 is the first token; tanh or relu."""

    def __init__(self, width: int, activation_name: str = "tanh", **kwargs: object) -> None:
        super().__init__((width,), (width,), True, **kwargs)
        self.width, self.activation_name = width, activation_name

    def call(self, x_bsd: tf.Tensor) -> tf.Tensor:
        checks.check_features("x", x_bsd.shape, self.width)
        y_br = super().call(x_bsd[:, 0])
        if self.activation_name == "relu":
            return activation(y_br, "relu")
        return tf.cast(tf.tanh(upcast_half(y_br)), y_br.dtype)

    def compute_mask(self, inputs: object, previous_mask: object) -> None:
        """A row has no positions left."""

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return input_shape[0], self.width

    def get_config(self) -> dict[str, object]:
        own = {"width": self.width, "activation_name": self.activation_name}
        return {**keras.layers.Layer.get_config(self), **own}


@register
class Classifier(Projection):
    """`logits = dropout(x) W + b`, `b c`, where x is the pooled token: scores of every class."""

    def __init__(self, width: int, classes: int, dropout_rate: float, **kwargs: object) -> None:
        super().__init__((width,), (classes,), True, **kwargs)
        self.width, self.classes = width, classes
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")

    def call(
        self, pooled_br: tf.Tensor, keep_br: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        checks.check_pooled(pooled_br.shape, self.width)
        return super().call(self.dropout(pooled_br, keep_br, training=training))

    def get_config(self) -> dict[str, object]:
        sizes = {"width": self.width, "classes": self.classes, "dropout_rate": self.dropout.rate}
        return {**keras.layers.Layer.get_config(self), **sizes}


@register
class MaskedLanguageHead(Configured):
    """`logits = norm(activation(x W + b)) W_v + b_v`, `b s v`: scores of every position's token.

    W and b belong to `hidden`. tied: as in `Logits`, with the source table.
    """

    def __init__(self, config: TransformerConfig, tied: bool = False, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        self.tied, width, dtype = tied, config.model_width, self.dtype_policy
        self.hidden = Projection((width,), (width,), config.head_bias, dtype=dtype, name="hidden")
        self.norm = norm(config, dtype=dtype, name="norm")
        vocabulary = config.source_vocabulary
        self.logits = Logits(config, vocabulary, tied, dtype=dtype, name="logits")

    def call(self, x_bsd: tf.Tensor, table_vd: tf.Tensor | None = None) -> tf.Tensor:
        checks.check_features("x", x_bsd.shape, self.config.model_width)
        active_bsr = activation(self.hidden(x_bsd), self.config.activation)
        return self.logits(self.norm(active_bsr), table_vd)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "tied": self.tied}
