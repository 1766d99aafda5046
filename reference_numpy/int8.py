"""Projections whose kernels and inputs are rounded to int8 while they are multiplied (INT8)."""

from collections.abc import Mapping

import numpy as np

from . import arithmetic

__all__ = ["affine", "quantised"]

LARGEST, TINY = 127, 1e-30


def quantised(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """`x8 = round(x / s)` and the scale `s = max |x| / 127` over these axes, which stay with the size 1; of zeros the scale is above 0."""
    scale = np.maximum(np.abs(x).max(axis=axes, keepdims=True), x.dtype.type(TINY)) / x.dtype.type(
        LARGEST
    )
    return np.rint(arithmetic.divide(x, scale)).astype(np.int32), scale


def affine(subscripts: str, x: np.ndarray, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """`arithmetic.affine` in int8: `y = r s (x8 W8) + b`, with a scale r for every token and a scale s for every output.

    The sums are integers; scales, bias and result have the dtype of x.
    """
    kernel, (inputs, result) = parameters["kernel"], subscripts.split("->")
    of_x, of_kernel = inputs.split(",")
    x8, r = quantised(x, tuple(axis for axis, letter in enumerate(of_x) if letter not in result))
    kernel8, s = quantised(
        kernel, tuple(axis for axis, letter in enumerate(of_kernel) if letter not in result)
    )
    y = arithmetic.einsum(subscripts, x8, kernel8).astype(x.dtype) * arithmetic.einsum(
        subscripts, r, s
    )
    return y + parameters["bias"] if "bias" in parameters else y
