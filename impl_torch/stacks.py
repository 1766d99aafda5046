"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig
from reference_numpy.config import LayerKind

from . import rotary
from .dropout import Dropout, Keep, part
from .layers import DecoderLayer, EncoderLayer, Layer
from .normalization import norm
from .rotary import Rotation

__all__ = ["Decoder", "Encoder"]

Rotations = Sequence[Rotation | None]
# (layer, x, rotation, index) -> x after the layer
Through = Callable[[Layer, Tensor, Rotation | None, int], Tensor]


class Stack(nn.Module):
    """`x = layer_i(x)` for every layer, then the final norm: vectors in, vectors out.

    Holds `embedding_dropout`, which `Transformer` applies to the input. Its layers may be replaced
    by other classes: they get `rotation` only where the layer rotates, `keep` only if there are
    keep masks, and `routed` only for the loss of routers.
    """

    def __init__(self, config: TransformerConfig, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.layers = cast(Sequence[Layer], nn.ModuleList(layers))
        self.final_norm = norm(config) if config.final_norm else nn.Identity()

    def walk(
        self,
        x_btd: Tensor,
        through: Through,
        position_bt: Tensor | None = None,
        turned: Rotations | None = None,
    ) -> Tensor:
        """`x = through(layer, x, rotation, index)` for every layer, then the final norm.

        position_bt: default, token t has position t. turned: the rotations, if already computed.
        """
        if turned is None:
            turned = rotation(self.config, len(self.layers), x_btd, position_bt)
        for index, layer in enumerate(self.layers):
            x_btd = through(layer, x_btd, turned[index], index)
        return self.final_norm(x_btd)


class Encoder(Stack):
    """A stack of `EncoderLayer`: `b s d`."""

    def __init__(self, config: TransformerConfig) -> None:
        layers = range(config.encoder_layers)
        super().__init__(config, (EncoderLayer(config, layer) for layer in layers))

    def forward(
        self,
        x_bsd: Tensor,
        mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        position_bs: Tensor | None = None,
    ) -> Tensor:
        def through(layer: Layer, x_bsd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
            given = {"rotation": rotation, "keep": part(keep, "layers", str(index))}
            given = {name: value for name, value in given.items() if value is not None}
            return layer(x_bsd, mask_bhts, **given)

        return self.walk(x_bsd, through, position_bs)


class Decoder(Stack):
    """A stack of `DecoderLayer`, which also attend to the memory: `b t d`.

    routed: collects the logits of the layers' routers.
    """

    def __init__(self, config: TransformerConfig) -> None:
        layers = range(config.decoder_layers)
        super().__init__(config, (DecoderLayer(config, layer) for layer in layers))

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        position_bt: Tensor | None = None,
        routed: list[Tensor] | None = None,
    ) -> Tensor:
        def through(layer: Layer, x_btd: Tensor, rotation: Rotation | None, index: int) -> Tensor:
            own = part(keep, "layers", str(index))
            given = {"rotation": rotation, "keep": own, "routed": routed}
            given = {name: value for name, value in given.items() if value is not None}
            return layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)

        return self.walk(x_btd, through, position_bt)


def rotation(
    config: TransformerConfig, layers: int, x_btd: Tensor, position_bt: Tensor | None = None
) -> list[Rotation | None]:
    """Returns every layer's rotation (ROTARY); by default, token t has position t."""
    if position_bt is None:
        position_bt = torch.arange(x_btd.shape[1], device=x_btd.device)[None]

    def of_kind(kind: LayerKind) -> Rotation:
        return rotary.rotation(config, kind, position_bt, x_btd.dtype)

    return rotary.by_layer(config, layers, of_kind)
