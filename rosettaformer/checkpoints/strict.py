"""What must hold for tensors before they are taken for a model's parameters: names, shapes, one dtype, finite values."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from reference_numpy import parameters

__all__ = ["DTYPES", "content_problems", "problems"]

DTYPES = ("float64", "float32", "bfloat16", "float16")


def problems(tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Everything that is wrong with the tensors of a model whose parameters have the expected names and shapes."""
    return [*parameters.mismatches(tensors, expected), *content_problems(tensors, expected)]


def content_problems(tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Every tensor of another dtype than the four or than most tensors, and every one that holds NaN or infinite values.

    Values are read of tensors that are no larger than expected, and where memory has room for all of these.
    """
    found = [*_dtype_problems(tensors)]
    known = {name: array for name, array in tensors.items() if array.size <= math.prod(expected.get(name, (0,)))}
    size, room = sum(array.nbytes for array in known.values()), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > room:
        return [*found, f"the model must fit into memory, {room / 1e9:.1f} GB; its tensors take {size / 1e9:.1f} GB"]
    return [*found, *_value_problems(known)]


def _dtype_problems(tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    labels = {dtype: str(dtype) for dtype in {array.dtype for array in tensors.values()}}
    dtypes = {name: labels[array.dtype] for name, array in tensors.items()}
    counts = Counter(dtype for dtype in dtypes.values() if dtype in DTYPES).most_common(1)
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            yield f"{name} must be one of {', '.join(DTYPES)}; got {dtype}"
        elif dtype != counts[0][0]:
            yield f"{name} must be {counts[0][0]} like most tensors; got {dtype}"


def _value_problems(tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    for name, array in tensors.items():
        if str(array.dtype) in DTYPES and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            yield f"{name} must be finite; got {nans} NaN and {int((~np.isfinite(array)).sum()) - nans} infinite of {array.size} values"
