"""Encoder and decoder: stacks of layers."""

from typing import Any

from torch import Tensor, nn

from reference_numpy import TransformerConfig

from .dropout import Dropout, Keep, part
from .layers import DecoderLayer, EncoderLayer
from .normalization import norm
from .rotary import Rotation, rotations

__all__ = ["Decoder", "Encoder"]


class Encoder(nn.Module):
    """`x = layer_i(x)` for every layer, then `final_norm(x)` if the config has one. Vectors in,
    vectors out: `b s d`.

    It owns `embedding_dropout`, a site of the encoder, which `Transformer.encode` applies. A layer
    of another class takes x and the mask; it takes keep masks only if it is given some, and a
    rotation only if it is in the place of one that rotates. position_bs: without it, token s has
    position s.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.layers: Any = nn.ModuleList(
            EncoderLayer(config, index) for index in range(config.encoder_layers)
        )
        self.final_norm = norm(config) if config.final_norm else nn.Identity()

    def forward(
        self,
        x_bsd: Tensor,
        mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        position_bs: Tensor | None = None,
    ) -> Tensor:
        turned = rotations(self.config, len(self.layers), x_bsd, position_bs)
        for index, layer in enumerate(self.layers):
            given = _given(part(keep, "layers", str(index)), turned[index])
            x_bsd = layer(x_bsd, mask_bhts, *given)
        return self.final_norm(x_bsd)


class Decoder(nn.Module):
    """`x = layer_i(x, memory)` for every layer, then `final_norm(x)` if the config has one. Vectors
    in, vectors out: `b t d`.

    It owns `embedding_dropout`, a site of the decoder, which `Transformer.decode` applies. A layer
    of another class takes x, the memory and both masks; it takes keep masks only if it is given
    some, and a rotation only if it is in the place of one that rotates. position_bt: without it,
    token t has position t.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.layers: Any = nn.ModuleList(
            DecoderLayer(config, index) for index in range(config.decoder_layers)
        )
        self.final_norm = norm(config) if config.final_norm else nn.Identity()

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Keep | None = None,
        position_bt: Tensor | None = None,
    ) -> Tensor:
        turned = rotations(self.config, len(self.layers), x_btd, position_bt)
        for index, layer in enumerate(self.layers):
            given = _given(part(keep, "layers", str(index)), turned[index])
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, *given)
        return self.final_norm(x_btd)


def _given(keep: Keep | None, rotation: Rotation | None) -> tuple[Any, ...]:
    """Returns keep masks and rotation as arguments, none if there are none: a layer of another
    class need not take them.
    """
    if rotation is not None:
        return keep, rotation
    return () if keep is None else (keep,)
