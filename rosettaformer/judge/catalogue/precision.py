"""Known bugs and settings of models that compute or store in a narrower dtype than their own."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from reference_numpy import arithmetic, rotary

from ..case import numpy_dtype
from ..expectation.orders import to_tf32
from ..expectation.patching import within
from .alteration import Alteration, Altered, Array, Variants, on_arguments, on_result, setting
from .deviation import BOTH
from .positional_encoding import arranged

Tree = Mapping[str, Any]
# the functions that read parameters: contractions, norms and table lookups
READERS = (
    "arithmetic.affine", "normalization.layer_norm", "embedding.embedding", "embedding.segment_embedding",
    "positional_encoding.position_embedding",
)  # fmt: skip


def precisions() -> Iterator[Alteration]:
    """Yields settings in which a float64 model rounds numbers to float32."""

    def scaled(query_bthk: np.ndarray) -> np.ndarray:
        scale = query_bthk.shape[-1] ** -0.5
        return query_bthk * query_bthk.dtype.type(_rounded(scale) / scale)

    def embedded(original: Callable, parameters: Tree, token: np.ndarray, scale: bool) -> np.ndarray:
        x_btd, root = original(parameters, token, False), parameters["table"].shape[1] ** 0.5
        return x_btd * x_btd.dtype.type(_rounded(root)) if scale else x_btd

    title, fix = "the attention scale is rounded to float32", "compute the scale in the query's dtype"
    yield setting("scale=float32", "scaled_dot_product_attention", title, fix, on_arguments(query_bthk=scaled))
    for id_, (what, power) in TIMESCALES.items():
        title, fix = f"{what} rounded to float32", "compute the timescales from Python floats, or in float64"
        yield setting(f"{id_}=float32", "positional_encoding", title, fix, _with_power(power))
    title, fix = "sqrt(d) of the embedding is rounded to float32", "multiply by a Python float"
    yield setting("embedding scale=float32", "embedding", title, fix, embedded)
    title, fix = "epsilon is rounded to float32", "add a Python float to the variance"
    yield setting("epsilon=float32", "layer_norm", title, fix, on_arguments(epsilon=_rounded))
    title, fix = "the constants of GELU are rounded to float32", "multiply by Python floats"
    yield setting("gelu constants=float32", "activation", title, fix, _gelu_of_rounded_constants)
    for dtype in ("float32", "bfloat16", "float16"):
        title, fix = f"the parameters are rounded to {dtype}", "create the model and load the parameters in its own dtype"
        altered, places = on_arguments(parameters=_stored_in(numpy_dtype(dtype))), READERS
        yield setting(f"parameters={dtype}", "transformer", title, fix, altered, *places)
    title, fix, altered = (
        "the embeddings are rounded to float32",
        "look tokens up in a table of the model's dtype",
        on_result(_through_float32),
    )
    yield setting("embedding=float32", "embedding", title, fix, altered)


def _rounded(number: float) -> float:
    return float(np.float32(number))


def _with_power(power: Callable[[float, np.ndarray], np.ndarray]) -> Callable:
    """Computes the sinusoids' frequencies by another function of the base and the exponents."""
    return within({"arithmetic.power": lambda original, base, exponent: power(base, exponent)})


TIMESCALES: dict[str, tuple[str, Callable[[float, np.ndarray], np.ndarray]]] = {
    "frequencies": ("the sinusoids' frequencies are", lambda base, exponent: _through_float32(np.power(base, exponent))),
    "wavelengths": ("the sinusoids' wavelengths are", lambda base, exponent: 1 / _through_float32(np.power(base, -exponent))),
    "1/base": ("the sinusoids' 1/10000 is", lambda base, exponent: np.power(_rounded(1 / base), -exponent)),
    "log(base)": ("the sinusoids' log(10000) is", lambda base, exponent: np.exp(_rounded(math.log(base)) * exponent)),
    "exponents": ("the sinusoids' exponents are", lambda base, exponent: np.power(base, _through_float32(exponent))),
}


def _through_float32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(x.dtype)


def _stored_in(dtype: np.dtype) -> Callable[[Tree], Tree]:
    """Rounds parameters of a wider dtype to this dtype and back."""
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


def _rounded_operands(original: Callable, subscripts: str, *operands: Array) -> Array:
    return original(subscripts, *(to_tf32(operand) for operand in operands))


def _single(x: Any) -> Any:
    """Rounds a float64 array to float32."""
    return _narrow(x).astype(x.dtype)


def _in_single(original: Callable, *args: Any, **options: Any) -> Array:
    """Computes in float32 and casts the result back."""
    arrays = [x for x in (*args, *options.values()) if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    if not arrays or arrays[0].dtype != np.float64:
        return original(*args, **options)
    result: Array = original(*map(_narrow, args), **{name: _narrow(x) for name, x in options.items()})
    return result.astype(np.float64)


def _narrow(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _narrow(value) for name, value in x.items()}
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


def _single_positions(original: Callable, position_bt: Array, width: int, dtype: Any = np.float64, layout: str = "interleaved") -> Array:
    if arithmetic.is_half(np.dtype(dtype)):
        return original(position_bt, width, dtype, layout)
    column, base = np.arange(width), cast(float, np.float32(10000.0))
    # Through `arithmetic`, so that other summation orders measure its rounding error.
    wavelength = arithmetic.power(base, (2.0 * (column // 2) / width).astype(np.float32))
    angle = arithmetic.divide(position_bt[..., None].astype(np.float32), wavelength)
    return arranged(np.where(column % 2 == 0, np.sin(angle), np.cos(angle)), layout).astype(dtype)


def _single_rotation(original: Callable, config: Any, kind: Any, position_bt: Array, dtype: Any) -> rotary.Rotation:
    if np.dtype(dtype) != np.float64:
        return original(config, kind, position_bt, dtype)
    return rotary.Rotation(*(part.astype(np.float64) for part in original(config, kind, position_bt, np.float32)))


ALTERED: Altered = {
    "PRC1": {"arithmetic.einsum": _rounded_operands},
    "PRC2": {"positional_encoding.positional_encoding": _single_positions},
    "PRC3": {"softmax.softmax": _in_single},
    "PRC4": dict.fromkeys(BOTH, _in_single),
    "PRC5": {"embedding.logits": _in_single},
    "PRC6": {"feed_forward.activation": _in_single},
    "PRC7": {"rotary.rotation": _single_rotation},
}
VARIANTS: Variants = {
    "PRC2": {"positions are stored in float32 in a float64 model": {"positional_encoding.positional_encoding": on_result(_single)}},
    "PRC5": {"the logits are stored in float32 in a float64 model": {"embedding.logits": on_result(_single)}},
}
