"""Cases of the activations and the feed-forward network."""

from collections.abc import Iterator

import numpy as np

from reference_numpy.config import ACTIVATIONS

from ..case import Case
from .build import Builder

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Every activation, swept over its whole bend and into its tails; the network with each, and at one position."""
    sweep = np.linspace(-9, 9, 361).reshape(1, 19, 19)
    for name in ACTIVATIONS:
        gelu = "FFN1 FFN2" if name.startswith("gelu") else ""
        yield build.make("activation", name, build.config(activation=name), gelu, x=sweep)
        yield build.make("feed_forward", name, build.config(activation=name), f"{gelu} FFN3 PRC1", x_btd="b t d")
    yield build.make("feed_forward", "one_position", build.config(), "FFN3", x_btd="1 1 d")
    yield build.make("feed_forward", "hidden_dropout", build.config("sapiens"), x_btd="b t d")
