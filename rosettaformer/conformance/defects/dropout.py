"""Defects of dropout."""

from typing import Any

import numpy as np

from .defect import Defect

__all__ = ["DEFECTS"]


def _not_inverted(x: Any, keep: Any, rate: float) -> np.ndarray:
    return x if keep is None else np.where(keep, x, x.dtype.type(0))


DEFECTS = (Defect("DRP4", "kept values are not divided by 1 - rate", "dropout", "apex#816", {"dropout.dropout": _not_inverted}),)
