"""Defects of RMS normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from .alteration import Altered

__all__ = ["ALTERED"]


def _centred(original: Callable, parameters: Any, x_btd: np.ndarray, epsilon: float) -> np.ndarray:
    """The norm of what is left when the mean is subtracted."""
    return original(parameters, x_btd - arithmetic.mean(x_btd, axis=-1), epsilon)


ALTERED: Altered = {"RMS1": {"normalization.rms_norm": _centred}}
