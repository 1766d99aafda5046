"""What must hold for tensors before they are taken for a model's parameters: names, shapes, dtypes, finite values."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

__all__ = ["DTYPES", "TensorLike", "dtype_problems", "match_problems", "nearest", "value_problems"]

DTYPES = ("float64", "float32", "bfloat16", "float16")
_COMPARABLE = 2500  # pairs of names; comparing more of them letter by letter would take many seconds


class TensorLike(Protocol):
    """An array, or what a file declares of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


def match_problems(
    tensors: Mapping[str, TensorLike], expected: Mapping[str, tuple[int, ...]], reasons: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Every missing, unexpected, misnamed, transposed and misshapen tensor; `reasons` says why a name is not expected."""
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    closely = len(missing) * len(unexpected) <= _COMPARABLE
    for name in missing:
        yield f"missing {name} of shape {expected[name]}{nearest(name, unexpected, closely)}"
    for name, tensor in tensors.items():
        if name not in expected:
            yield f"unexpected {name}" + ((reasons or {}).get(name) or nearest(name, missing, closely))
        elif tuple(tensor.shape) != tuple(expected[name]):
            yield f"{name} {_misfit(tuple(tensor.shape), tuple(expected[name]))}"


def nearest(name: str, candidates: Iterable[str], closely: bool = True) -> str:
    """The most similar candidate, as an addition to a message; nothing where none is similar. One that only lacks a prefix is found
    also where there are too many names to compare them closely."""
    candidates = list(candidates)
    found = [other for other in candidates if f".{other}".endswith(f".{name}") or f".{name}".endswith(f".{other}")][:1]
    if not found and closely:
        found = difflib.get_close_matches(name, candidates, n=1)
    return f" (nearest: {found[0]})" if found else ""


def dtype_problems(tensors: Mapping[str, TensorLike]) -> Iterator[str]:
    """Every tensor of another dtype than the four, and every one that differs from most."""
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    counts = Counter(dtype for dtype in dtypes.values() if dtype in DTYPES)
    usual = counts.most_common(1)[0][0] if counts else None
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            yield f"{name} must be one of {', '.join(DTYPES)}; got {dtype}"
        elif dtype != usual:
            yield f"{name} must be {usual} like most tensors; got {dtype}"


def value_problems(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Every tensor of one of the four dtypes that holds NaN or infinite values."""
    for name, array in arrays.items():
        if str(array.dtype) in DTYPES and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            yield f"{name} must be finite; got {nans} NaN and {int((~np.isfinite(array)).sum()) - nans} infinite of {array.size} values"


def _misfit(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if shape == wanted[::-1]:
        return f"is transposed: has axes reversed, shape {shape}; must have shape {wanted}"
    if sorted(shape) == sorted(wanted):
        return f"has its axes in another order, shape {shape}; must have shape {wanted}"
    return f"must have shape {wanted}; got {shape}"
