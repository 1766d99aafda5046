"""The stacks of encoder and decoder layers."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig

from .dropout import Dropout, Keep, part
from .framework import Configured, register, sizes
from .layers import DecoderLayer, EncoderLayer
from .normalization import norm
from .rotary import Rotation, rotation

__all__ = ["Decoder", "Encoder"]


class _Stack(Configured):
    """The layers are the attributes `layers_0` and so on: tf.train.Checkpoint finds none within a
    list of Keras.

    Another layer is put in a place by its attribute, `encoder.layers_0 = layer`, before the stack
    is built. It takes x and the mask, in a decoder x, the memory and both masks; keep, if keep
    masks are given; and rotation, in the place of a layer that rotates.
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
        for index, name in enumerate(self._names):
            setattr(self, name, layer(config, index, dtype=self.dtype_policy, name=name))
        if config.final_norm:
            self.final_norm = norm(config, dtype=self.dtype_policy, name="final_norm")

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

    def given(
        self, x_btd: tf.Tensor, keep: Keep | None, position_bt: tf.Tensor | None
    ) -> list[dict[str, Any]]:
        """What every layer is given by name, if there is any: layers of other classes need take
        neither keep nor rotation."""
        rotations: list[Rotation | None] = [None] * self.count
        if self.config.positions == "rotary":
            if position_bt is None:
                position_bt = tf.range(sizes(x_btd)[1])[tf.newaxis]
            rotations = self.rotations(position_bt)
        result = []
        for index, turned in enumerate(rotations):
            named = {"keep": part(keep, "layers", str(index)), "rotation": turned}
            result.append({name: value for name, value in named.items() if value is not None})
        return result

    def rotations(
        self, position_bt: tf.Tensor, length: tf.Tensor | None = None
    ) -> list[Rotation | None]:
        """The rotation of every layer, one for all layers of a kind; None if it has none.

        length: as `rotary.rotation`.
        """
        config = self.config
        kinds = [config.layer_kind(index) for index in range(self.count)]
        by_kind = {
            kind: rotation(config, kind, position_bt, self.compute_dtype, length)
            for kind in dict.fromkeys(kinds)
            if kind.rotary
        }
        return [by_kind.get(kind) for kind in kinds]


@register
class Encoder(_Stack):
    """`x = norm(layer_n(... layer_1(x)))`, with the final norm by config: vectors `b s d` to
    vectors.

    position_bs: of the tokens, for layers that rotate; without it, token s has position s.
    `embedding_dropout` is applied by `Transformer.encode`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, EncoderLayer, config.encoder_layers, **kwargs)

    def call(
        self,
        x_bsd: tf.Tensor,
        mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
        position_bs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        given = self.given(x_bsd, keep, position_bs)
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, **given[index])
        return self.normalise(x_bsd)


@register
class Decoder(_Stack):
    """`x = norm(layer_n(... layer_1(x, memory), memory))`, with the final norm by config: vectors
    `b t d` to vectors.

    memory: None in a decoder-only model. position_bt: of the tokens, for layers that rotate;
    without it, token t has position t. `embedding_dropout` is applied by `Transformer.decode`.
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
        position_bt: tf.Tensor | None = None,
    ) -> tf.Tensor:
        given = self.given(x_btd, keep, position_bt)
        for index, layer in enumerate(self.layers):
            masks = self_mask_bhts, cross_mask_bhts
            x_btd = layer(x_btd, memory_bsd, *masks, **given[index])
        return self.normalise(x_btd)
