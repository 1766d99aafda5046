"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig
from reference_numpy.config import LayerKind

from .dropout import Dropout, Keep, part
from .framework import Configured, Routed, keras, register, sizes
from .layers import DecoderLayer, EncoderLayer
from .normalization import norm
from .rotary import Rotation, rotation

__all__ = ["Decoder", "Encoder"]

# (layer, x, rotation, index) -> x after the layer
Through: TypeAlias = Callable[[keras.layers.Layer, tf.Tensor, "Rotation | None", int], tf.Tensor]


class _Stack(Configured):
    """A stack of layers in attributes `layers_0` ...; tf.train.Checkpoint ignores Keras' lists.

    To replace a layer, assign its attribute, `encoder.layers_0 = layer`, before the stack is built.
    The new layer takes x and the mask, in a decoder x, the memory and both masks; keep only if
    there are keep masks; rotation only where the layer rotates.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer: type[EncoderLayer] | type[DecoderLayer],
        count: int,
        **kwargs: object,
    ) -> None:
        super().__init__(config, **kwargs)
        self.embedding_dropout = Dropout(
            config.dropout_rate, dtype=self.dtype_policy, name="embedding_dropout"
        )
        self.count = count
        for index in range(count):
            name = f"layers_{index}"
            setattr(self, name, layer(config, index, dtype=self.dtype_policy, name=name))
        if config.final_norm:
            self.final_norm = norm(config, dtype=self.dtype_policy, name="final_norm")

    @property
    def layers(self) -> tuple[keras.layers.Layer, ...]:
        """The layers in order."""
        return tuple(getattr(self, f"layers_{index}") for index in range(self.count))

    def walk(
        self,
        x_btd: tf.Tensor,
        through: Through,
        position_bt: tf.Tensor | None = None,
        length: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """`x = through(layer, x, rotation, index)` for every layer, then the final norm, if any.

        rotation: shared by layers of a kind; None if the layer does not rotate. length: as in
        `rotary.rotation`.
        """
        rotations: dict[LayerKind, Rotation] = {}
        for index, layer in enumerate(self.layers):
            kind = self.config.layer_kind(index)
            if kind.rotary and kind not in rotations:
                if position_bt is None:
                    position_bt = tf.range(sizes(x_btd)[1])[tf.newaxis]
                dtype = self.compute_dtype
                rotations[kind] = rotation(self.config, kind, position_bt, dtype, length)
            x_btd = through(layer, x_btd, rotations.get(kind), index)
        return self.final_norm(x_btd) if self.config.final_norm else x_btd


@register
class Encoder(_Stack):
    """`x = norm(layer_n(... layer_1(x)))`, with an optional final norm: `b s d`.

    position_bs: default, token s has position s. `Transformer.encode` applies `embedding_dropout`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, EncoderLayer, config.encoder_layers, **kwargs)

    def call(
        self,
        x_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        position_bs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        def through(
            layer: keras.layers.Layer, x_bsd: tf.Tensor, rotation: Rotation | None, index: int
        ) -> tf.Tensor:
            given = {"rotation": rotation, "keep": part(keep, "layers", str(index))}
            given = {name: value for name, value in given.items() if value is not None}
            return layer(x_bsd, mask_bhts, **given)

        return self.walk(x_bsd, through, position_bs)


@register
class Decoder(_Stack):
    """`x = norm(layer_n(... layer_1(x, memory), memory))`, with an optional final norm: `b t d`.

    memory: None in a decoder-only model. routed: collects the logits of the layers' routers.
    Positions and dropout: as in `Encoder`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, DecoderLayer, config.decoder_layers, **kwargs)

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        position_bt: tf.Tensor | None = None,
        routed: Routed | None = None,
    ) -> tf.Tensor:
        def through(
            layer: keras.layers.Layer, x_btd: tf.Tensor, rotation: Rotation | None, index: int
        ) -> tf.Tensor:
            own = part(keep, "layers", str(index))
            given = {"rotation": rotation, "keep": own, "routed": routed}
            given = {name: value for name, value in given.items() if value is not None}
            return layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)

        return self.walk(x_btd, through, position_bt)
