"""Defects of layer normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, normalization

from .defect import Defect

__all__ = ["DEFECTS"]

_layer_norm = normalization.layer_norm
HALF = ("bfloat16", "float16")


def _normalised(formula: Callable[[np.ndarray, float], np.ndarray]) -> Callable:
    """The norm whose centred and scaled values are a formula of the wide input and epsilon."""

    def altered(parameters: Any, x_btd: Any, epsilon: float) -> np.ndarray:
        wide = arithmetic.widen(x_btd)
        scale, offset = arithmetic.widen(parameters["scale"]), arithmetic.widen(parameters["offset"])
        return (formula(wide, epsilon) * scale + offset).astype(x_btd.dtype, copy=False)

    return altered


def _unbiased(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + x.dtype.type(epsilon))


def _squared(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + x.dtype.type(epsilon)) ** 2


def _one_pass(x: np.ndarray, epsilon: float) -> np.ndarray:
    mean = x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0) + x.dtype.type(epsilon))


def _over_positions(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + x.dtype.type(epsilon))


def _keras_epsilon(parameters: Any, x_btd: Any, epsilon: float) -> np.ndarray:
    return _layer_norm(parameters, x_btd, 1e-3)


def _cast_before_scale(parameters: Any, x_btd: Any, epsilon: float) -> np.ndarray:
    width = x_btd.shape[-1]
    unit = {"scale": np.ones(width, x_btd.dtype), "offset": np.zeros(width, x_btd.dtype)}
    return _layer_norm(unit, x_btd, epsilon) * parameters["scale"] + parameters["offset"]


def _defect(id_: str, title: str, evidence: str, function: Any, **options: Any) -> Defect:
    return Defect(id_, title, "layer_norm", evidence, {"normalization.layer_norm": function}, **options)


DEFECTS = (
    _defect("NRM1", "unbiased deviation, epsilon outside the root", "guide, annotated-transformer#119", _normalised(_unbiased)),
    _defect("NRM2", "epsilon is Keras' default of 1e-3", "keras-hub#642, candle#271", _keras_epsilon),
    _defect("NRM3", "the variance is squared instead of rooted", "llm-foundry#372", _normalised(_squared)),
    _defect("NRM4", "the variance is E[x^2] - E[x]^2", "burn#5607, equinox#314, pytorch#55044", _normalised(_one_pass)),
    _defect("NRM5", "normalised over the positions", "jadore801120#17", _normalised(_over_positions)),
    _defect("NRM7", "cast to the half type before scale and offset", "TransformerEngine#1132", _cast_before_scale, dtypes=HALF),
)
