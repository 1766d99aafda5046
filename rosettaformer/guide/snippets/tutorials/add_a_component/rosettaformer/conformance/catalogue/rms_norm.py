"""Defects of RMS normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .defect import Defect

__all__ = ["DEFECTS"]


def _centred(original: Callable, parameters: Any, x_btd: np.ndarray, epsilon: float) -> np.ndarray:
    """The norm of what is left when the mean is subtracted."""
    return original(parameters, x_btd - arithmetic.mean(x_btd, axis=-1), epsilon)


DEFECTS = (
    Defect(
        id="RMS1",
        title="the mean is subtracted before the RMS norm",
        what="`scale (x - mean) / sqrt(variance + epsilon)`: a layer norm without an offset.",
        shows="Nothing where the mean is 0. Rows whose mean is not 0 show it.",
        torch="F.rms_norm(x, scale.shape, scale, epsilon)",
        tf="keras.layers.RMSNormalization(epsilon=epsilon)  # not LayerNormalization(center=False)",
        jax="nnx.RMSNorm(width, epsilon=epsilon)  # not LayerNorm(use_bias=False)",
        evidence="NRM20 of the catalogue, the other way round",
        replaces={"normalization.rms_norm": _centred},
    ),
)
