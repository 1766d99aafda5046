"""The stacks of encoder and decoder layers."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig

from .dropout import Dropout, Keep, part
from .framework import Configured, register
from .layers import DecoderLayer, EncoderLayer
from .normalization import LayerNorm

__all__ = ["Decoder", "Encoder"]


class _Stack(Configured):
    """The layers are the attributes `layers_0` and so on: tf.train.Checkpoint finds none within a
    list of Keras.

    Another layer is put in a place by its attribute, `encoder.layers_0 = layer`, before the stack
    is built. It takes x and the mask, in a decoder x, the memory and both masks; and keep, if keep
    masks are given.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer: type[EncoderLayer] | type[DecoderLayer],
        count: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, **kwargs)
        self.embedding_dropout = Dropout(
            config.dropout_rate, dtype=self.dtype_policy, name="embedding_dropout"
        )
        self.count = count
        for name in self._names:
            setattr(self, name, layer(config, dtype=self.dtype_policy, name=name))
        if config.final_norm:
            self.final_norm = LayerNorm(
                config.model_width, config.epsilon, dtype=self.dtype_policy, name="final_norm"
            )

    @property
    def layers(self) -> tuple[Any, ...]:
        """The layers in their order."""
        return tuple(getattr(self, name) for name in self._names)

    @property
    def _names(self) -> list[str]:
        return [f"layers_{index}" for index in range(self.count)]

    def normalise(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The final norm, where the config has one."""
        return self.final_norm(x_btd) if self.config.final_norm else x_btd


@register
class Encoder(_Stack):
    """`x = norm(layer_n(... layer_1(x)))`, with the final norm by config: vectors `b s d` to
    vectors.

    `embedding_dropout` is applied by `Transformer.encode`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, EncoderLayer, config.encoder_layers, **kwargs)

    def call(
        self,
        x_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, **_keep(keep, index))
        return self.normalise(x_bsd)


@register
class Decoder(_Stack):
    """`x = norm(layer_n(... layer_1(x, memory), memory))`, with the final norm by config: vectors
    `b t d` to vectors.

    memory: None in a decoder-only model. `embedding_dropout` is applied by `Transformer.decode`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, DecoderLayer, config.decoder_layers, **kwargs)

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        for index, layer in enumerate(self.layers):
            masks = self_mask_bhts, cross_mask_bhts
            x_btd = layer(x_btd, memory_bsd, *masks, **_keep(keep, index))
        return self.normalise(x_btd)


def _keep(keep: Keep | None, index: int) -> dict[str, Keep]:
    """The argument `keep` of a layer, if there is any: layers of other classes need not take it."""
    of_layer = part(keep, "layers", str(index))
    return {} if of_layer is None else {"keep": of_layer}
