"""Projections whose kernels and inputs are rounded to int8 while they are multiplied (INT8)."""

import numpy as np

from . import arithmetic
from .arrays import Array, Tree

__all__ = ["affine", "quantised"]

LARGEST, TINY = 127, 1e-30


def quantised(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """`x8 = round(x / s)` and the scale `s = max |x| / 127` over these axes, which keep the size 1.

    The scale of zeros is above 0.
    """
    number, largest = x.dtype.type, np.abs(x).max(axis=axes, keepdims=True)
    scale = np.maximum(largest, number(TINY)) / number(LARGEST)
    return np.rint(arithmetic.divide(x, scale)).astype(np.int32), scale


def affine(subscripts: str, x: Array, parameters: Tree) -> Array:
    """`y = r s (x8 W8) + b`: `arithmetic.affine` in int8, scales r of tokens and s of outputs.

    The sums are integers; scales, bias and result have the dtype of x.
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
