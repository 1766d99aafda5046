"""Elementary arithmetic of the reference, and how half-precision dtypes compute.

Every operation that a framework may evaluate in another order is in this module, so that the judge
can replace it in one place and measure the effect of the order.
"""

import math
from collections.abc import Sequence

import numpy as np

from .arrays import Array, Tree

__all__ = [
    "affine",
    "affine_vjp",
    "cos",
    "divide",
    "einsum",
    "einsum_vjp",
    "erf",
    "exp",
    "is_half",
    "mean",
    "power",
    "scatter_add",
    "sin",
    "sum",
    "tanh",
    "times",
    "unbroadcast",
    "upcast_half",
]


def is_half(dtype: np.dtype) -> bool:
    """Returns True for the 16-bit floating dtypes, float16 and bfloat16."""
    return np.dtype(dtype).itemsize == 2


def upcast_half(array: Array) -> Array:
    """Returns a half-precision array as float32, and any other array unchanged."""
    return array.astype(np.float32) if is_half(array.dtype) else array


def einsum(subscripts: str, *operands: Array) -> Array:
    """Contracts the operands as the axis letters specify, in their dtype.

    Half-precision dtypes multiply and add in float32 and round once at the end, as matrix units do.
    """
    result = np.einsum(subscripts, *(upcast_half(operand) for operand in operands), optimize=True)
    return result.astype(operands[0].dtype, copy=False)


def affine(subscripts: str, x: Array, parameters: Tree) -> Array:
    """`x W + b`, contracted as the axis letters specify; the bias is optional."""
    y = einsum(subscripts, x, parameters["kernel"])
    if "bias" in parameters:
        y += parameters["bias"]  # in place: these are the largest arrays of the model
    return y


def einsum_vjp(subscripts: str, x: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
    """Returns the gradients of `einsum(subscripts, x, kernel)` with respect to x and kernel."""
    inputs, output = subscripts.split("->")
    first, second = inputs.split(",")
    gradient = einsum(f"{output},{second}->{first}", cotangent, kernel)
    return gradient, einsum(f"{first},{output}->{second}", x, cotangent)


def affine_vjp(
    subscripts: str, x: Array, parameters: Tree, cotangent: Array
) -> tuple[Array, dict[str, Array]]:
    """Returns the gradients of `affine` with respect to x and to each parameter."""
    gradient, kernel = einsum_vjp(subscripts, x, parameters["kernel"], cotangent)
    if "bias" not in parameters:
        return gradient, {"kernel": kernel}
    bias = unbroadcast(cotangent, parameters["bias"].shape)
    return gradient, {"kernel": kernel, "bias": bias}


def unbroadcast(array: Array, shape: Sequence[int]) -> Array:
    """The gradient of broadcasting: the sum over the axes along which an array was broadcast.

    Half-precision dtypes add in float32.
    """
    result = upcast_half(array)
    if not result.size:
        return np.zeros(shape, dtype=array.dtype)
    result = sum(result.reshape(-1, *result.shape[result.ndim - len(shape) :]), axis=0)[0]
    for axis, size in enumerate(shape):
        if size == 1 and result.shape[axis] != 1:
            result = sum(result, axis)
    return result.astype(array.dtype, copy=False)


def scatter_add(rows: Array, index: Array, size: int) -> Array:
    """`y[index[i]] += rows[i]`, where y starts as `size` rows of zeros: the gradient of a row
    lookup.

    Half-precision dtypes add in float32.
    """
    result = np.zeros((size, rows.shape[-1]), dtype=upcast_half(rows).dtype)
    np.add.at(result, index.reshape(-1), rows.reshape(-1, rows.shape[-1]))
    return result.astype(rows.dtype, copy=False)


def sum(array: Array, axis: int) -> Array:
    """Returns the sum over one axis, keeping it with size 1."""
    return np.sum(array, axis=axis, keepdims=True)


def mean(array: Array, axis: int) -> Array:
    """Returns the arithmetic mean over one axis, keeping it with size 1."""
    return sum(array, axis) / array.dtype.type(array.shape[axis])


def divide(numerator: Array, denominator: Array) -> Array:
    """Returns numerator / denominator, elementwise."""
    return numerator / denominator


def times(factor: Array, other: Array) -> Array:
    """Returns factor * other, elementwise; implementations may divide by `1 / other` instead."""
    return factor * other


def power(base: float, exponent: Array) -> Array:
    """Returns base ** exponent, elementwise, in the dtype of the exponent."""
    return base**exponent


def exp(x: Array) -> Array:
    """Returns the exponential, elementwise."""
    return np.exp(x)


def sin(x: Array) -> Array:
    """Returns the sine, elementwise."""
    return np.sin(x)


def cos(x: Array) -> Array:
    """Returns the cosine, elementwise."""
    return np.cos(x)


def tanh(x: Array) -> Array:
    """Returns the hyperbolic tangent, elementwise."""
    return np.tanh(x)


def erf(x: Array) -> Array:
    """Returns the error function, elementwise, computed in float64 and rounded to x's dtype."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), dtype=x.dtype)
