"""Cases of dropout with a given keep mask."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, T, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """A mixed mask, a broadcast one, everything kept at rate 0, everything dropped; evaluation."""
    keep = rng("dropout keep").random((B, T, build.config().model_width)) < 0.7
    yield build.make("dropout", "mixed", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep)
    yield build.make("dropout", "broadcast", build.config(dropout_rate=0.3), "DRP3 DRP4", x="b t d", keep=keep[:, :1])
    yield build.make("dropout", "rate_0", build.config(dropout_rate=0.0), x="b t d", keep=np.ones_like(keep))
    yield build.make("dropout", "all_dropped", build.config(dropout_rate=0.9), "DRP3", x="b t d", keep=np.zeros_like(keep))
    yield build.make("dropout", "evaluation", build.config(dropout_rate=0.3), "DRP1", x="b t d", keep=None)
