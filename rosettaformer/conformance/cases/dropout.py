"""Cases of dropout with a given keep mask."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, T, config, make, rng

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """A mixed mask, a broadcast one, everything kept at rate 0, everything dropped; evaluation."""
    keep = rng("dropout keep").random((B, T, 13)) < 0.7
    yield make("dropout", "mixed", config(dropout_rate=0.3), "DRP4", x=(B, T, 13), keep=keep)
    yield make("dropout", "broadcast", config(dropout_rate=0.3), "DRP4", x=(B, T, 13), keep=keep[:, :1])
    yield make("dropout", "rate_0", config(dropout_rate=0.0), x=(B, T, 13), keep=np.ones_like(keep))
    yield make("dropout", "all_dropped", config(dropout_rate=0.9), x=(B, T, 13), keep=np.zeros_like(keep))
    yield make("dropout", "evaluation", config(dropout_rate=0.3), x=(B, T, 13), keep=None)
