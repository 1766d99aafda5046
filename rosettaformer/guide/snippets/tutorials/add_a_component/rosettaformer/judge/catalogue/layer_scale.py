"""Known bugs of LayerScale."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .alteration import Altered


def _scaled_sum(original: Callable, parameters: Any, x_btd: np.ndarray, y_btd: np.ndarray) -> np.ndarray:
    """Scales the residual sum."""
    return original(parameters, np.zeros_like(x_btd), x_btd + y_btd)


ALTERED: Altered = {"LSC1": {"layers.layer_scale": _scaled_sum}}
