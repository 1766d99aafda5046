"""Positions, sinusoidal and learned (POSITION)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import POSITION_STARTS, SINUSOID_LAYOUTS
from reference_numpy.suggestions import known

from . import framework, mask, precision
from .embedding import Table

__all__ = ["PositionEmbedding", "positional_encoding", "token_positions"]


def token_positions(mask_bt: Tensor, start: str = "first_token") -> Tensor:
    """`position_t = max(t - n, 0)`, with n padding tokens before the first real one: int64 `b t`.

    start: "row" counts from the first token, real or not: `position_t = t`.
    """
    mask.check("mask", mask_bt)
    known("position start", [start], POSITION_STARTS)
    place_t = torch.arange(mask_bt.shape[1], device=mask_bt.device)
    if start == "row":
        return place_t.expand(mask_bt.shape)
    real_bt = mask_bt.long()  # ONNX cannot add booleans
    leading_b1 = (real_bt.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)
    return (place_t - leading_b1).clamp(min=0)


def positional_encoding(
    position_bt: Tensor, width: int, dtype: torch.dtype = torch.float64, layout: str = "interleaved"
) -> Tensor:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`, `b t d`.

    layout: "halves" puts all sines before all cosines. "tensor2tensor" does too, with frequencies
    `10000^(-i/(n-1))` of n = d // 2 pairs; an odd width ends in a zero. Computed in float64 on the
    device of the positions, then cast to dtype.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    known("sinusoid layout", [layout], SINUSOID_LAYOUTS)
    pairs, last = (width + 1) // 2, width / 2
    if layout == "tensor2tensor":
        pairs, last = width // 2, max(width // 2 - 1, 1)
    pair = torch.arange(pairs, dtype=torch.float64, device=position_bt.device)
    angle = position_bt[..., None] * torch.pow(10000.0, -pair / last)
    if layout == "interleaved":
        encoding = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    else:
        encoding = torch.cat((angle.sin(), angle.cos()), dim=-1)
    if 2 * pairs < width:
        encoding = F.pad(encoding, (0, 1))
    return encoding[..., :width].to(dtype)


class PositionEmbedding(Table):
    """`x = table[position + offset]`, `b t d`: rows of a learned table.

    positions: number of positions that the table supports; it has `offset` more rows.
    """

    def __init__(self, positions: int, offset: int, width: int) -> None:
        super().__init__(positions + offset, width)
        self.offset = offset

    def check_ids(self, position_bt: Tensor) -> None:
        """Raises ValueError on positions that `forward` rejects."""
        rows, kind = self.num_embeddings - self.offset, precision.dtype_name(position_bt.dtype)
        checks.check_rows("position", position_bt.shape, kind, rows, *framework.bounds(position_bt))

    def forward(self, position_bt: Tensor) -> Tensor:
        self.check_ids(position_bt)
        return self.look_up(position_bt)

    def look_up(self, position_bt: Tensor) -> Tensor:
        return super().look_up(position_bt + self.offset if self.offset else position_bt)


def position_embedding(config: TransformerConfig) -> PositionEmbedding:
    """Returns the position table of a config with learned positions."""
    return PositionEmbedding(config.max_positions, config.position_offset, config.model_width)
