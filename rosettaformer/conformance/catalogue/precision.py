"""Defects of the precision in which everything computes, and of a float64 model some of which does so in float32."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from reference_numpy import arithmetic

from ..reference.tolerance import to_tf32
from .defect import Defect, on_result

__all__ = ["DEFECTS"]

Array = np.ndarray


def _rounded_operands(original: Callable, subscripts: str, *operands: Array) -> Array:
    return original(subscripts, *(to_tf32(operand) for operand in operands))


def _single(x: Any) -> Any:
    """Through float32, for what is float64."""
    if isinstance(x, Mapping):
        return {name: _single(value) for name, value in x.items()}
    return x.astype(np.float32).astype(x.dtype) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


def _in_single(original: Callable, *args: Any, **options: Any) -> Array:
    """The function of float32 arguments, and its result back in the dtype of what it was given."""
    arrays = [x for x in (*args, *options.values()) if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    if not arrays or arrays[0].dtype != np.float64:
        return original(*args, **options)
    result: Array = original(*map(_narrow, args), **{name: _narrow(x) for name, x in options.items()})
    return result.astype(np.float64)


def _narrow(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _narrow(value) for name, value in x.items()}
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


def _single_positions(original: Callable, position_bt: Array, width: int, dtype: Any = np.float64) -> Array:
    if np.dtype(dtype) != np.float64:
        return original(position_bt, width, dtype)
    column, base = np.arange(width), cast(float, np.float32(10000.0))
    # In functions of the arithmetic, so that other orders show how much is a matter of rounding.
    wavelength = arithmetic.power(base, (2.0 * (column // 2) / width).astype(np.float32))
    angle = arithmetic.divide(position_bt[..., None].astype(np.float32), wavelength)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


_DTYPE: dict[str, Any] = {
    "torch": "x = x.to(self.weight.dtype)  # no .float(), and torch.set_default_dtype(torch.float64) before constants are made",
    "tf": 'keras.backend.set_floatx("float64")  # a layer made before has float32; tf.constant(..., dtype=x.dtype)',
    "jax": 'jax.config.update("jax_enable_x64", True)  # otherwise every float64 becomes float32; jnp.asarray(..., x.dtype)',
}
_SINGLE: dict[str, Any] = {"dtypes": ("float64",), "rounding": True, **_DTYPE}
DEFECTS = (
    Defect(
        id="PRC1",
        title="float32 contractions round their operands to TF32",
        component="transformer",
        what="A matrix product of float32 keeps 10 bits of each factor's mantissa (TF32; 7 on TPUs, which use bfloat16) instead of 23.",
        shows="Relative errors of 1e-3 in whatever multiplies matrices, in float32 only, and only on some devices. Any input shows it.",
        torch='torch.set_float32_matmul_precision("highest")',
        tf="tf.config.experimental.enable_tensor_float_32_execution(False)",
        jax='jax.config.update("jax_default_matmul_precision", "highest")',
        evidence="jax#7010, jax#10413",
        replaces={"arithmetic.einsum": _rounded_operands},
        rounding=True,
    ),
    Defect(
        id="PRC2",
        title="positions are computed in float32 in a float64 model",
        component="positional_encoding",
        what="Frequencies, angles, sines and cosines are float32, and their result is cast to float64; or the table is stored in float32.",
        shows="Errors of 1e-7 at near positions and of 1e-3 at far ones, in float64. Any position shows it.",
        variants={"positions are stored in float32 in a float64 model": {"positional_encoding.positional_encoding": on_result(_single)}},
        evidence="derived, not reported",
        replaces={"positional_encoding.positional_encoding": _single_positions},
        **_SINGLE,
    ),
    Defect(
        id="PRC3",
        title="the softmax is computed in float32 in a float64 model",
        component="softmax",
        what="`softmax(x, dtype=float32)`, a code path for half precision, is taken in float64, too: what is wide is narrowed.",
        shows="Errors of 1e-7, in float64 only. Any logits show it.",
        evidence="derived, not reported",
        replaces={"softmax.softmax": _in_single},
        **_SINGLE,
    ),
    Defect(
        id="PRC4",
        title="the norm is computed in float32 in a float64 model",
        component="layer_norm",
        what="The input of the norm is cast to float32, as for half precision, and its output back.",
        shows="Errors of 1e-7, in float64 only. Any input shows it.",
        evidence="derived, not reported",
        replaces={"normalization.layer_norm": _in_single},
        **_SINGLE,
    ),
    Defect(
        id="PRC5",
        title="the logits are computed in float32 in a float64 model",
        component="logits",
        what="The head casts its input, its kernel or its result to float32.",
        shows="Errors of 1e-7 in the logits alone, in float64 only. Any input shows it.",
        variants={"the logits are stored in float32 in a float64 model": {"embedding.logits": on_result(_single)}},
        evidence="derived, not reported",
        replaces={"embedding.logits": _in_single},
        **_SINGLE,
    ),
    Defect(
        id="PRC6",
        title="the activation is computed in float32 in a float64 model",
        component="activation",
        what="The input of the activation is cast to float32, and its output back.",
        shows="Errors of 1e-7, in float64 only. Any input shows it.",
        evidence="derived, not reported",
        replaces={"feed_forward.activation": _in_single},
        **_SINGLE,
    ),
)
