"""Projections that multiply kernels and inputs in int8 (INT8)."""

import numpy as np

from . import arithmetic
from .arrays import Array, Tree

__all__ = ["affine", "quantised"]

LARGEST, TINY = 127, 1e-30


def quantised(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """`x8 = round(x / s)` and `s = max |x| / 127` over these axes, which keep size 1.

    All-zero inputs have a positive scale.
    """
    number, largest = x.dtype.type, np.abs(x).max(axis=axes, keepdims=True)
    scale = np.maximum(largest, number(TINY)) / number(LARGEST)
    return np.rint(arithmetic.divide(x, scale)).astype(np.int32), scale


def affine(subscripts: str, x: Array, parameters: Tree) -> Array:
    """`y = r s (x8 W8) + b`: `arithmetic.affine` in int8, with scales r per token and s per output.

    Sums are integers; scales, bias and result have the dtype of x.
    """
    kernel, (inputs, result) = parameters["kernel"], subscripts.split("->")
    of_x, of_kernel = inputs.split(",")
    x8, r = quantised(x, tuple(axis for axis, letter in enumerate(of_x) if letter not in result))
    kernel8, s = quantised(
        kernel, tuple(axis for axis, letter in enumerate(of_kernel) if letter not in result)
    )
    y = arithmetic.einsum(subscripts, x8, kernel8).astype(x.dtype)
    y = y * arithmetic.einsum(subscripts, r, s)
    return y + parameters["bias"] if "bias" in parameters else y
