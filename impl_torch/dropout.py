"""Inverted dropout (DROPOUT), and the trees of keep masks."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import checks

from . import precision

__all__ = ["Dropout"]

Keep = Mapping[str, Any]  # keep masks, nested by the parts of their sites' names


class Dropout(nn.Module):
    """`y = x / (1 - rate)` if kept, otherwise 0: an `nn.Dropout` that also takes a keep mask, and
    drops by it in any mode.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return dropout(x, keep, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def dropout(x: Tensor, keep: Tensor | None, rate: float, training: bool) -> Tensor:
    """Computes `Dropout`; without a keep mask, entries are dropped at random in training and none
    in evaluation.
    """
    if keep is None:
        return F.dropout(x, rate, training)
    checks.check_keep(keep.shape, precision.dtype_name(keep.dtype), x.shape, rate)
    return torch.where(keep, x / (1 - rate), 0)


def part(keep: Any, *names: str) -> Any:
    """Returns the keep masks below these names, None if there are none."""
    for name in names:
        keep = None if keep is None else keep.get(name)
    return keep
