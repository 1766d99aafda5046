"""Statistics of random outputs, which are compared instead of the numbers: every framework draws
its own.

A component in `RANDOM` gets a seed. Its output's statistics are compared with those of the
reference with other seeds; the spread of the reference's own draws is the noise
(`tolerance.expect`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import dropout

Arrays = Mapping[str, Any]


def random_dropout(x: np.ndarray, seed: int, rate: float) -> np.ndarray:
    """Applies dropout in training, with a mask that is a function of the seed."""
    return dropout.dropout(x, keep_mask(x.shape, seed, rate), rate)


def keep_mask(shape: tuple[int, ...], seed: int, rate: float) -> np.ndarray:
    """Returns a keep mask whose entries are True with probability 1 - rate, independently."""
    return np.random.default_rng(seed).random(shape) >= rate


def measured(component: str, inputs: Arrays, outputs: Arrays) -> dict[str, Any]:
    """Returns the statistics of a random component's outputs, in their dtype; other outputs
    unchanged.

    Empty and non-floating outputs are returned unchanged and fail the comparison.
    """
    if component not in RANDOM or not all(isinstance(value, np.ndarray) and value.size and _floating(value) for value in outputs.values()):
        return dict(outputs)
    return {name: value for output, array in outputs.items() for name, value in RANDOM[component](output, array, inputs)}


def _floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _of_parameters(name: str, array: np.ndarray, inputs: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yields a parameter's shape, mean, standard deviation and largest magnitude."""
    wide = array.astype(np.float64)
    yield f"{name}.shape", np.array(array.shape)
    for statistic, value in (("mean", wide.mean()), ("deviation", wide.std()), ("largest", np.abs(wide).max())):
        yield f"{name}.{statistic}", np.asarray(value, dtype=array.dtype)


def _of_mask(name: str, array: np.ndarray, inputs: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the share of dropped entries, the least and largest factor of kept ones, and the
    correlation of neighbors per axis.

    The correlation is 1 if a mask is shared along an axis and 0 if its entries are independent. x
    has no zeros.
    """
    x = inputs["x"].astype(np.float64)
    yield "shape", np.array(array.shape)
    if array.shape != x.shape:
        return
    kept = (array != 0).astype(np.float64)
    factor = (array.astype(np.float64) / x)[array != 0]
    share = kept.mean()
    values = {"dropped": 1 - share, "least_factor": factor.min(initial=np.inf), "largest_factor": factor.max(initial=-np.inf)}
    centred, variance = kept - share, share * (1 - share)
    for axis in range(x.ndim):
        first, second = (np.take(centred, span, axis) for span in (range(x.shape[axis] - 1), range(1, x.shape[axis])))
        values[f"correlation_{axis}"] = (first * second).mean() / variance if variance else 0.0
    yield from ((statistic, np.asarray(value, dtype=array.dtype)) for statistic, value in values.items())


# component -> the statistics of one of its outputs
RANDOM: dict[str, Callable[[str, np.ndarray, Arrays], Iterator[tuple[str, np.ndarray]]]] = {
    "initialise": _of_parameters,
    "random_dropout": _of_mask,
}
