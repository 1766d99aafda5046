"""Encoder and decoder: stacks of layers."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from reference_numpy import TransformerConfig

from .dropout import Dropout
from .fast.packing import Packing
from .layers import DecoderLayer, EncoderLayer
from .normalization import LayerNorm

__all__ = ["Decoder", "Encoder"]

Tree = Mapping[str, Any]


class Encoder(nn.Module):
    """`x = layer_i(x)` for every layer, then `final_norm(x)` where the config has one. Vectors in, vectors out: `b s d`.

    It owns `embedding_dropout`, a site of the encoder, which `Transformer.encode` applies. A layer of another class takes x and the mask.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.layers: Any = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.final_norm = (
            LayerNorm(config.model_width, config.epsilon) if config.final_norm else nn.Identity()
        )

    def forward(
        self,
        x_bsd: Tensor,
        mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            x_bsd = layer(
                x_bsd, mask_bhts, **_given(keep=layer_keep.get(str(index)), packing=packing)
            )
        return self.final_norm(x_bsd)


class Decoder(nn.Module):
    """`x = layer_i(x, memory)` for every layer, then `final_norm(x)` where the config has one. Vectors in, vectors out: `b t d`.

    It owns `embedding_dropout`, a site of the decoder, which `Transformer.decode` applies. A layer of another class takes x,
    the memory and both masks.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding_dropout = Dropout(config.dropout_rate)
        self.layers: Any = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.final_norm = (
            LayerNorm(config.model_width, config.epsilon) if config.final_norm else nn.Identity()
        )

    def forward(
        self,
        x_btd: Tensor,
        memory_bsd: Tensor | None = None,
        self_mask_bhts: Tensor | None = None,
        cross_mask_bhts: Tensor | None = None,
        keep: Tree | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            given = _given(
                keep=layer_keep.get(str(index)), packing=packing, memory_packing=memory_packing
            )
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, **given)
        return self.final_norm(x_btd)


def _given(**arguments: Any) -> dict[str, Any]:
    """What there is of the arguments that layers of other classes need not take."""
    return {name: value for name, value in arguments.items() if value is not None}
