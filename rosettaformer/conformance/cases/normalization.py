"""Cases of layer normalisation."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, S, T, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Rows of small variance, where epsilon shows; a large mean, where E[x^2] - E[x]^2 fails; a constant row; T = d."""
    generator = rng("normalization values")
    narrow, width = build.config(model_width=4), build.config().model_width
    shrinking = generator.standard_normal((B, S, narrow.model_width)) * np.logspace(0, -3, S)[:, None]
    far = 100 + generator.standard_normal((B, T, width))
    constant = np.repeat(generator.standard_normal((B, T, 1)), width, axis=2)
    formula = "NRM1 NRM2 NRM3 NRM5"
    yield build.make("layer_norm", "small_variance", narrow, formula, x_btd=shrinking)
    yield build.make("layer_norm", "small_variance_1e_6", build.config(model_width=4, epsilon=1e-6), formula, x_btd=shrinking)
    yield build.make("layer_norm", "plain", build.config(), "NRM3 NRM5", x_btd="b t d")
    yield build.make("layer_norm", "large_mean", build.config(), "NRM4", x_btd=far)
    yield build.make("layer_norm", "constant_rows", build.config(), x_btd=constant)
    yield build.make("layer_norm", "square", build.config(), "NRM5", x_btd="b d d")
    yield _cancelling_offset(build)
    yield build.make("layer_norm", "one_position", build.config(), x_btd="1 1 d")
    yield build.make("layer_norm", "batch_0", build.config(), x_btd="0 t d")


def _cancelling_offset(build: Builder) -> Case:
    """Rows that the offset nearly cancels, so that rounding before scale and offset shows."""
    generator = rng("normalization cancelling")
    width = build.config().model_width
    pattern = generator.standard_normal(width)
    normalised = (pattern - pattern.mean()) / pattern.std()
    near = pattern + 0.01 * generator.standard_normal((B, T, width))
    fixed = {"scale": np.full(width, 48.0), "offset": -48.0 * normalised}
    return build.make("layer_norm", "cancelling_offset", build.config(), "NRM7", fixed, x_btd=near)
