"""Inverted dropout (DROPOUT)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import precision

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """`nn.Dropout` that also takes the keep mask: then the same entries are dropped in every framework, in training or not."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return dropout(x, keep, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def dropout(x: Tensor, keep: Tensor | None, rate: float, training: bool) -> Tensor:
    """The entries that are kept, by the mask; without one at random in training, and all of them in evaluation."""
    if keep is None:
        return F.dropout(x, rate, training)
    checks.check_keep(keep.shape, precision.name(keep.dtype), x.shape, rate)
    return torch.where(keep, x / (1 - rate), 0)
