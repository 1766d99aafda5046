"""Defects of the feed-forward network."""

from typing import Any

import numpy as np

from reference_numpy import feed_forward

from .defect import Defect

__all__ = ["DEFECTS"]

_activation = feed_forward.activation


def _other_gelu(x: Any, name: str) -> np.ndarray:
    return _activation(x, {"gelu_erf": "gelu_tanh", "gelu_tanh": "gelu_erf"}.get(name, name))


def _quick_gelu(x: Any, name: str) -> np.ndarray:
    return _activation(x, name) if name == "relu" else x / (1 + np.exp(-x.dtype.type(1.702) * x))


def _defect(id_: str, title: str, evidence: str, function: Any) -> Defect:
    return Defect(id_, title, "activation", evidence, {"feed_forward.activation": function})


DEFECTS = (
    _defect("FFN1", "the other form of GELU (erf, tanh)", "pocket-tts#278", _other_gelu),
    _defect("FFN2", "quick GELU, x sigmoid(1.702 x)", "tinygrad#526", _quick_gelu),
)
