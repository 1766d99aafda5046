"""Cases of layer normalisation."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, S, T, config, make, rng

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Rows of small variance, where epsilon shows; a large mean, where E[x^2] - E[x]^2 fails; a constant row; T = d."""
    generator = rng("normalization values")
    shrinking = generator.standard_normal((B, S, 4)) * np.logspace(0, -3, S)[:, None]
    far = 100 + generator.standard_normal((B, T, 13))
    constant = np.repeat(generator.standard_normal((B, T, 1)), 13, axis=2)
    formula = "NRM1 NRM2 NRM3 NRM5"
    for epsilon in (1e-5, 1e-6):
        name = f"small_variance_{epsilon:.0e}".replace("-0", "_")
        yield make("layer_norm", name, config(model_width=4, epsilon=epsilon), formula, x_btd=shrinking)
    yield make("layer_norm", "plain", config(), "NRM3 NRM5", x_btd=(B, T, 13))
    yield make("layer_norm", "large_mean", config(), "NRM4", x_btd=far)
    yield make("layer_norm", "constant_rows", config(), x_btd=constant)
    yield make("layer_norm", "square", config(), "NRM5", x_btd=(B, 13, 13))
    yield _cancelling_offset()
    yield make("layer_norm", "one_position", config(), x_btd=(1, 1, 13))
    yield make("layer_norm", "batch_0", config(), x_btd=(0, T, 13))


def _cancelling_offset() -> Case:
    """Rows that the offset nearly cancels, so that rounding before scale and offset shows."""
    generator = rng("normalization cancelling")
    pattern = generator.standard_normal(13)
    normalised = (pattern - pattern.mean()) / pattern.std()
    near = pattern + 0.01 * generator.standard_normal((B, T, 13))
    fixed = {"scale": np.full(13, 48.0), "offset": -48.0 * normalised}
    return make("layer_norm", "cancelling_offset", config(), "NRM7", fixed, x_btd=near)
