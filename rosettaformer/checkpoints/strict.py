"""What must hold for tensors before they are taken for a model's parameters: names, shapes, one dtype, finite values."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from reference_numpy import parameters

__all__ = ["DTYPES", "problems", "value_problems"]

DTYPES = ("float64", "float32", "bfloat16", "float16")


def problems(tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Everything that is wrong with the tensors of a model whose parameters have the expected names and shapes."""
    return [*parameters.mismatches(tensors, expected), *value_problems(tensors)]


def value_problems(tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Every tensor of another dtype than the four or than most tensors, and every one that holds NaN or infinite values."""
    dtypes = {name: str(array.dtype) for name, array in tensors.items()}
    counts = Counter(dtype for dtype in dtypes.values() if dtype in DTYPES).most_common(1)
    for name, array in tensors.items():
        if dtypes[name] not in DTYPES:
            yield f"{name} must be one of {', '.join(DTYPES)}; got {dtypes[name]}"
            continue
        if dtypes[name] != counts[0][0]:
            yield f"{name} must be {counts[0][0]} like most tensors; got {dtypes[name]}"
        if not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            yield f"{name} must be finite; got {nans} NaN and {int((~np.isfinite(array)).sum()) - nans} infinite of {array.size} values"
