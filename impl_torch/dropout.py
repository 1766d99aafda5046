"""Inverted dropout (DROPOUT), and trees of keep masks."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks, sites

from . import precision

__all__ = ["Dropout"]

# keep masks, nested by the parts of their site names
Keep: TypeAlias = Mapping[str, "Tensor | Keep"]


class Dropout(nn.Module):
    """`y = x / (1 - rate)` where kept, else 0: an `nn.Dropout` with optional keep masks."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return dropout(x, keep, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def dropout(x: Tensor, keep: Tensor | None, rate: float, training: bool) -> Tensor:
    """Functional `Dropout`; without a mask, draws one in training and returns x in evaluation."""
    if keep is None:
        return F.dropout(x, rate, training)
    checks.check_keep(keep.shape, precision.dtype_name(keep.dtype), x.shape, rate)
    return torch.where(keep, x / (1 - rate), 0)


def part(keep: Any, *names: str) -> Any:
    """Returns the keep masks below these names, or None if there are none."""
    for name in names:
        keep = None if keep is None else keep.get(name)
    return keep


def words(entries: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Draws at least `entries` random 16-bit words, packed four to an int64."""
    empty = torch.empty(-(-entries // 4), dtype=torch.int64, device=device)
    return empty.random_(-(2**63), None, generator=generator)


def cut(
    config: TransformerConfig, shapes: Mapping[str, tuple[int, ...]], words: Tensor
) -> dict[str, Tensor]:
    """Cuts random words, 16 bits per entry, along their last axis into the keep masks of these
    sites. Other axes of the words are the first axes of every mask.
    """
    rows = words.shape[:-1].numel()
    sizes = [math.prod(shape) // rows for shape in shapes.values()]
    parts = words.view(torch.int16)[..., : sum(sizes)].split(sizes, dim=-1)
    return {
        site: (part >= round(sites.rate(config, site) * 2**16) - 2**15).view(shape)
        for (site, shape), part in zip(shapes.items(), parts, strict=True)
    }
