"""The stacks of encoder and decoder layers."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig

from .dropout import Dropout
from .fast.packing import Packing, kept
from .framework import Configured, register
from .layers import DecoderLayer, EncoderLayer, Keep
from .normalization import LayerNorm

__all__ = ["Decoder", "Encoder"]


class _Stack(Configured):
    """The layers are the attributes `layers_0` and so on: tf.train.Checkpoint finds none within a list of Keras.

    Another layer is put in a place by its attribute, `encoder.layers_0 = layer`, before the stack is built. It takes x and the mask, in a
    decoder x, the memory and both masks.
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
    """`x = norm(layer_n(... layer_1(x)))`, with the final norm by config: vectors in, vectors out, `b s d`.

    `embedding_dropout` is applied by `Transformer.encode`. packing: where x is packed, and so is the result; keep masks are those of rows.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, EncoderLayer, config.encoder_layers, **kwargs)

    def call(
        self,
        x_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        packing: Packing | None = None,
    ) -> tf.Tensor:
        layer_keep = kept((keep or {}).get("layers", {}), packing)
        for index, layer in enumerate(self.layers):
            x_bsd = layer(
                x_bsd, mask_bhts, **_given(keep=layer_keep.get(str(index)), packing=packing)
            )
        return self.normalise(x_bsd)


@register
class Decoder(_Stack):
    """`x = norm(layer_n(... layer_1(x, memory), memory))`, with the final norm by config: vectors in, vectors out, `b t d`.

    memory: None of a decoder alone. `embedding_dropout` is applied by `Transformer.decode`. packing, memory_packing: where x and memory are
    packed, as of `Encoder`.
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
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> tf.Tensor:
        layer_keep = kept((keep or {}).get("layers", {}), packing)
        for index, layer in enumerate(self.layers):
            given = _given(
                keep=layer_keep.get(str(index)), packing=packing, memory_packing=memory_packing
            )
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)
        return self.normalise(x_btd)


def _given(**arguments: Any) -> dict[str, Any]:
    """What there is of the arguments that layers of other classes need not take."""
    return {name: value for name, value in arguments.items() if value is not None}
