"""Settings of what a model computes, or stores, in a narrower dtype than its own."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic

from ..case import numpy_dtype
from ..reference.patching import within
from .alteration import Alteration, setting
from .combinators import on_arguments, on_result

Tree = Mapping[str, Any]
# what reads parameters: contractions, norms, and lookups in tables
READERS = (
    "arithmetic.affine", "normalization.layer_norm", "embedding.embedding", "embedding.segment_embedding",
    "positional_encoding.position_embedding",
)  # fmt: skip


def precisions() -> Iterator[Alteration]:
    """Numbers that are rounded to float32 in a float64 model."""

    def scaled(query_bthk: np.ndarray) -> np.ndarray:
        scale = query_bthk.shape[-1] ** -0.5
        return query_bthk * query_bthk.dtype.type(_rounded(scale) / scale)

    def embedded(original: Callable, parameters: Tree, token: np.ndarray, scale: bool) -> np.ndarray:
        x_btd, root = original(parameters, token, False), parameters["table"].shape[1] ** 0.5
        return x_btd * x_btd.dtype.type(_rounded(root)) if scale else x_btd

    title, fix = "the scale is rounded to float32", "compute the scale in the dtype of the query"
    yield setting("scale=float32", "scaled_dot_product_attention", title, fix, on_arguments(query_bthk=scaled))
    for id_, (what, power) in TIMESCALES.items():
        title, fix = f"{what} rounded to float32", "compute the timescales of Python floats, or in float64"
        yield setting(f"{id_}=float32", "positional_encoding", title, fix, _with_power(power))
    title, fix = "sqrt(d) of the embedding is rounded to float32", "multiply by a Python float"
    yield setting("embedding scale=float32", "embedding", title, fix, embedded)
    title, fix = "epsilon is rounded to float32", "add a Python float to the variance"
    yield setting("epsilon=float32", "layer_norm", title, fix, on_arguments(epsilon=_rounded))
    title, fix = "the constants of GELU are rounded to float32", "multiply by Python floats"
    yield setting("gelu constants=float32", "activation", title, fix, _gelu_of_rounded_constants)
    for dtype in ("float32", "bfloat16", "float16"):
        title, fix = f"the parameters are rounded to {dtype}", "load the parameters in the dtype of the model, and create it in that dtype"
        altered, places = on_arguments(parameters=_stored_in(numpy_dtype(dtype))), READERS
        yield setting(f"parameters={dtype}", "transformer", title, fix, altered, *places)
    title, fix, altered = (
        "the embeddings are rounded to float32",
        "look the tokens up in a table of the model's dtype",
        on_result(_through_float32),
    )
    yield setting("embedding=float32", "embedding", title, fix, altered)


def _rounded(number: float) -> float:
    return float(np.float32(number))


def _with_power(power: Callable[[float, np.ndarray], np.ndarray]) -> Callable:
    """The sinusoids whose frequencies are another function of the base and of the exponents."""
    return within({"arithmetic.power": lambda original, base, exponent: power(base, exponent)})


TIMESCALES: dict[str, tuple[str, Callable[[float, np.ndarray], np.ndarray]]] = {
    "frequencies": ("the frequencies of the sinusoids are", lambda base, exponent: _through_float32(np.power(base, exponent))),
    "wavelengths": ("the wavelengths of the sinusoids are", lambda base, exponent: 1 / _through_float32(np.power(base, -exponent))),
    "1/base": ("1/10000 in the sinusoids is", lambda base, exponent: np.power(_rounded(1 / base), -exponent)),
    "log(base)": ("log(10000) in the sinusoids is", lambda base, exponent: np.exp(_rounded(math.log(base)) * exponent)),
    "exponents": ("the exponents of the sinusoids' base are", lambda base, exponent: np.power(base, _through_float32(exponent))),
}


def _through_float32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(x.dtype)


def _stored_in(dtype: np.dtype) -> Callable[[Tree], Tree]:
    """The parameters rounded to a dtype and back, where theirs is wider."""
    return lambda parameters: {
        name: value.astype(dtype).astype(value.dtype) if value.dtype.itemsize > dtype.itemsize else value
        for name, value in parameters.items()
    }


def _gelu_of_rounded_constants(original: Callable, x: np.ndarray, name: str) -> np.ndarray:
    if name not in ("gelu_erf", "gelu_tanh", "gelu_sigmoid") or x.dtype != np.float64:
        return original(x, name)
    if name == "gelu_erf":
        gate = arithmetic.erf(x * _rounded(0.5**0.5))
    elif name == "gelu_tanh":
        gate = np.tanh(_rounded((2 / math.pi) ** 0.5) * (x + _rounded(0.044715) * x**3))
    else:
        gate = np.tanh(_rounded(1.702) / 2 * x)
    return 0.5 * x * (1 + gate)
