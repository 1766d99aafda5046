"""Inverted dropout (DROPOUT)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import dtypes

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """`nn.Dropout` that also takes the keep mask: then the same entries are dropped in every framework, in training or not."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def active(self) -> bool:
        """True where a call without a keep mask is not the identity."""
        return self.training and self.rate > 0

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is None:
            return F.dropout(x, self.rate, self.training)
        checks.check_keep(keep.shape, dtypes.name(keep.dtype), x.shape, self.rate)
        return torch.where(keep, x / (1 - self.rate), 0)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
