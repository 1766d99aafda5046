"""Cases of RMS normalisation."""

from collections.abc import Iterator

import numpy as np

from ..case import SUITE_VERSION, Case
from .build import B, Builder, S, T, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Rows so small that epsilon shows, a large mean, one position."""
    generator, some = rng("rms norm values"), build.config()
    small = generator.standard_normal((B, S, some.model_width)) * np.logspace(0, -3, S)[:, None]
    far = 100 + generator.standard_normal((B, T, some.model_width))
    yield build.make("rms_norm", "small", some, "RMS1", since=SUITE_VERSION, x_btd=small)
    yield build.make("rms_norm", "large_mean", some, "RMS1", since=SUITE_VERSION, x_btd=far)
    yield build.make("rms_norm", "one_position", some, "RMS1", since=SUITE_VERSION, x_btd="1 1 d")
