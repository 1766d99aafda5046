"""The NumPy reference as a benchmarked row."""

import functools

from reference_numpy import parameters
from rosettaformer.comparison.timing.rows import Row

from ..answers import forward
from ..problem import Problem


def describe(device: str) -> str:
    """Raises ValueError unless the device is the CPU."""
    if device != "cpu":
        raise ValueError(f"numpy only runs on device cpu; got {device}")
    return "OpenBLAS"


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for the forward pass or the encoder, in float32."""
    nested = parameters.nest(problem.tensors)
    return [Row("numpy", "reference_numpy", start=lambda: functools.partial(forward, nested, problem))]
