"""Defects of precision: models that compute in a narrower dtype, and float64 models that compute partly in float32."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from reference_numpy import arithmetic, rotary

from ..reference.orders import to_tf32
from .alteration import Altered, Variants
from .combinators import on_result
from .deviation import BOTH
from .positional_encoding import arranged

Array = np.ndarray


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
    # In functions of the arithmetic, so that other orders show how much is a matter of rounding.
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
