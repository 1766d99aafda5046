"""Variants of the arithmetic that a framework may choose and no output may depend on."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import arithmetic, attention
from reference_numpy.values import Heads

from .patching import patched


def order(replacements: Mapping[str, Callable]) -> contextlib.AbstractContextManager[None]:
    """Replaces functions of the reference's arithmetic, or others by `module.function`."""

    def instead(function: Callable) -> Callable:
        return lambda original, *args, **options: function(*args, **options)

    return patched({name if "." in name else f"arithmetic.{name}": instead(function) for name, function in replacements.items()})


PART = 1 << 17  # elements of a copied operand contracted at once
_einsum, _scatter_add, _sum = arithmetic.einsum, arithmetic.scatter_add, arithmetic.sum
_attention_vjp = attention.scaled_dot_product_attention_vjp


def _contracted(subscripts: str) -> tuple[list[str], str]:
    """Returns the operands' axes and the summed letters of a contraction."""
    inputs, output = subscripts.split("->")
    operands = inputs.split(",")
    return operands, "".join(letter for letter in operands[0] if letter not in output)


def _by_columns(contract: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Returns the same contraction, computed a few columns of a large last operand at a time.

    Reordering terms copies them, and a copy of all columns would be as large as the largest
    parameter.
    """

    def in_parts(subscripts: str, *operands: np.ndarray) -> np.ndarray:
        (*others, axes), output = _contracted(subscripts)[0], subscripts.split("->")[1]
        columns = [letter for letter in axes if letter in output and not any(letter in other for other in others)]
        array = operands[-1]
        if array.size <= PART or not others or not columns:
            return contract(subscripts, *operands)
        axis, place = axes.index(columns[0]), output.index(columns[0])
        count = max(1, PART * array.shape[axis] // array.size)
        result: Any = None
        for start in range(0, array.shape[axis], count):
            part = slice(start, start + count)
            found = contract(subscripts, *operands[:-1], array[(slice(None),) * axis + (part,)])
            if result is None:
                shape = list(found.shape)
                shape[place] = array.shape[axis]
                result = np.empty(shape, found.dtype)
            result[(slice(None),) * place + (part,)] = found
        return result

    return in_parts


@_by_columns
def _einsum_backwards(subscripts: str, *operands: np.ndarray) -> np.ndarray:
    """Returns the contraction, summed from its last term to its first."""
    axes, summed = _contracted(subscripts)
    flipped = [np.flip(x, tuple(a.index(letter) for letter in summed)) for a, x in zip(axes, operands, strict=True)]
    return _einsum(subscripts, *map(np.ascontiguousarray, flipped))


def _einsum_in_two(halves: Callable[[int], tuple[slice, slice]]) -> Callable:
    """Returns the contraction as a sum over two halves of its terms, in the operands' dtype."""

    def contract(subscripts: str, *operands: np.ndarray) -> np.ndarray:
        axes, summed = _contracted(subscripts)
        size = operands[0].shape[axes[0].index(summed[0])]
        parts = []
        for half in halves(size):
            chosen = [x[tuple(half if letter == summed[0] else slice(None) for letter in a)] for a, x in zip(axes, operands, strict=True)]
            parts.append(_einsum(subscripts, *chosen))
        return parts[0] + parts[1]

    return _by_columns(contract)


def _sum_in_two(array: np.ndarray, axis: int) -> np.ndarray:
    first, second = (np.moveaxis(array, axis, -1)[..., start::2].sum(-1, keepdims=True) for start in (0, 1))
    return np.moveaxis(first + second, -1, axis)


def _scatter_add_backwards(rows: np.ndarray, index: np.ndarray, size: int) -> np.ndarray:
    return _scatter_add(rows.reshape(-1, rows.shape[-1])[::-1], index.reshape(-1)[::-1], size)


def _scatter_add_in_two(halves: Callable[[int], tuple[slice, slice]]) -> Callable:
    """Returns the sum, in the rows' dtype, of the sums over two halves of the rows."""

    def scatter_add(rows: np.ndarray, index: np.ndarray, size: int) -> np.ndarray:
        flat, places = rows.reshape(-1, rows.shape[-1]), index.reshape(-1)
        first, second = (_scatter_add(flat[half], places[half], size) for half in halves(len(places)))
        return first + second

    return scatter_add


def _alternating(size: int) -> tuple[slice, slice]:
    return slice(0, None, 2), slice(1, None, 2)


def _in_the_middle(size: int) -> tuple[slice, slice]:
    return slice(0, size // 2), slice(size // 2, None)


def _sum_one_by_one(array: np.ndarray, axis: int) -> np.ndarray:
    return np.take(np.cumsum(array, axis=axis, dtype=array.dtype), [-1], axis=axis)


def shuffled(seed: int) -> dict[str, Callable]:
    """Returns contractions and sums with randomly ordered terms, and for odd seeds other formulas
    of elementary functions.

    Half precision also rounds contractions randomly up or down: a framework may keep a sum in
    float32 that another rounds, and near 0 that decides the gradient of a ReLU (Monte Carlo
    arithmetic: Parker 1997).
    """

    @functools.cache
    def permutation(size: int) -> np.ndarray:
        return np.random.default_rng((seed, size)).permutation(size)

    def permuted(array: np.ndarray, axis: int) -> np.ndarray:
        return np.take(array, permutation(array.shape[axis]), axis=axis)

    @_by_columns
    def contracted(subscripts: str, *operands: np.ndarray) -> np.ndarray:
        axes, summed = _contracted(subscripts)
        moved = [arithmetic.upcast_half(operand) for operand in operands]
        for letter in summed:
            moved = [permuted(x, a.index(letter)) if letter in a else x for a, x in zip(axes, moved, strict=True)]
        return _einsum(subscripts, *moved)

    def einsum(subscripts: str, *operands: np.ndarray) -> np.ndarray:
        wide = contracted(subscripts, *operands)
        if not arithmetic.is_half(operands[0].dtype):
            return wide
        unit = float(ml_dtypes.finfo(operands[0].dtype).eps)
        dither = np.random.default_rng((seed, wide.size)).uniform(-unit / 2, unit / 2, wide.shape).astype(wide.dtype)
        return (wide * (1 + dither)).astype(operands[0].dtype)

    def add(array: np.ndarray, axis: int) -> np.ndarray:
        return _sum_one_by_one(permuted(array, axis), axis) if array.shape[axis] else _sum(array, axis)

    result: dict[str, Callable] = {"einsum": einsum, "sum": add}
    if seed % 2:
        result |= {"exp": _exp_by_square, "divide": _divide_by_reciprocal, "mean": _mean_by_reciprocal}
    return result


def _mean_by_reciprocal(array: np.ndarray, axis: int) -> np.ndarray:
    return arithmetic.sum(array, axis) * (array.dtype.type(1) / array.dtype.type(array.shape[axis]))


def _divide_by_reciprocal(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return numerator * (denominator.dtype.type(1) / denominator)


def _exp_by_square(x: np.ndarray) -> np.ndarray:
    return np.square(np.exp(x / 2))


def _power_a_unit_larger(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Returns the power, in float32 one ulp larger unless the exponent is 0: libraries differ."""
    power = np.power(base, exponent)
    if power.dtype != np.float32:
        return power
    return np.where(np.equal(exponent, 0), power, np.nextafter(power, np.float32(np.inf)))


def _attention_again_vjp(heads: Heads, *rest: Any, cotangent: np.ndarray, **options: Any) -> dict[str, Any]:
    """Returns the gradient as fused kernels compute it.

    The weights are recomputed as `exp(x - log of their sum)`, `sum_s P dP` is `sum_e dO O`, and the
    logits' gradient is rounded to the dtype before it is multiplied.
    """
    output_bthe = attention.scaled_dot_product_attention(heads, *rest, **options)
    product_bthe = arithmetic.upcast_half(cotangent) * arithmetic.upcast_half(output_bthe)
    row_bht1 = arithmetic.sum(product_bthe, axis=-1).swapaxes(1, 2)

    def softmax_vjp(original: Callable, logits: np.ndarray, mask: Any = None, *, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        x = arithmetic.upcast_half(logits)
        x = x if mask is None else np.where(mask, x, x.dtype.type(-np.inf))
        largest = np.max(x, axis=-1, keepdims=True)
        shifted = x - np.where(np.isneginf(largest), x.dtype.type(0), largest)
        whole = np.log(np.maximum(arithmetic.sum(arithmetic.exp(shifted), axis=-1), x.dtype.type(1)))
        gradient = arithmetic.exp(shifted - whole) * (arithmetic.upcast_half(cotangent) - row_bht1)
        return {"logits": gradient.astype(heads.query_bthk.dtype).astype(logits.dtype)}

    with patched({"softmax.softmax_vjp": softmax_vjp}):
        return _attention_vjp(heads, *rest, cotangent=cotangent, **options)


def to_tf32(array: np.ndarray) -> np.ndarray:
    """Returns float32 rounded to the 10 stored mantissa bits of TF32."""
    if array.dtype != np.float32:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


ORDERS: dict[str, dict[str, Callable]] = {
    "plain": {},
    "backwards": {
        "einsum": _einsum_backwards,
        "sum": lambda array, axis: np.sum(np.ascontiguousarray(np.flip(array, axis)), axis=axis, keepdims=True),
        "mean": _mean_by_reciprocal,
        "power": lambda base, exponent: np.exp(exponent * np.log(base)),
        "scatter_add": _scatter_add_backwards,
    },
    "alternating": {
        "einsum": _einsum_in_two(_alternating),
        "scatter_add": _scatter_add_in_two(_alternating),
        "sum": _sum_one_by_one,
        "divide": _divide_by_reciprocal,
        "times": lambda factor, other: factor / (1 / other),
        "exp": _exp_by_square,
    },
    "two halves": {
        "einsum": _einsum_in_two(_in_the_middle),
        "scatter_add": _scatter_add_in_two(_in_the_middle),
        "sum": _sum_in_two,
        "power": _power_a_unit_larger,
        "sin": lambda x: 2 * np.sin(x / 2) * np.cos(x / 2),
        "cos": lambda x: 1 - 2 * np.square(np.sin(x / 2)),
        "tanh": lambda x: 1 - 2 / (np.exp(np.minimum(2 * x, 80)) + 1),  # beyond 80 the result is 1 in every dtype
        "erf": lambda x: (1 - np.asarray(np.frompyfunc(math.erfc, 1, 1)(x), dtype=x.dtype)).astype(x.dtype),
    },
}
# In fused attention (Dao et al. 2022, algorithm 4) the terms of a row cancel less exactly.
GRADIENT_ORDERS: dict[str, dict[str, Callable]] = {"fused": {"attention.scaled_dot_product_attention_vjp": _attention_again_vjp}}
TF32_ORDERS: dict[str, dict[str, Callable]] = {
    "tf32": {"einsum": _by_columns(lambda subscripts, *operands: _einsum(subscripts, *map(to_tf32, operands)))}
}
