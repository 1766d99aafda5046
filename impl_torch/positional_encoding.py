"""Sinusoidal positions (POSITION)."""

import torch
from torch import Tensor

from reference_numpy import checks

from . import precision

__all__ = ["positional_encoding", "token_positions"]


def token_positions(mask_bt: Tensor) -> Tensor:
    """`position = max(t - (number of padding tokens before the first real one), 0)`, int64 `b t`."""
    checks.check_token_mask("mask", mask_bt.shape, precision.dtype_name(mask_bt.dtype))
    leading_b1 = (mask_bt.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)
    return (torch.arange(mask_bt.shape[1], device=mask_bt.device) - leading_b1).clamp(min=0)


def positional_encoding(position_bt: Tensor, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """`PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`: `b t d`.

    Computed in float64 on the positions' device, then cast.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    even = torch.arange(0, width, 2, dtype=torch.float64, device=position_bt.device)
    angle = position_bt[..., None] * torch.pow(10000.0, -even / width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width].to(dtype)
