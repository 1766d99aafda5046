"""The NumPy reference, timed as one more implementation."""

from reference_numpy import parameters
from reference_numpy import transformer as reference

from ..problem import Problem
from ..rows import Row

__all__ = ["describe", "rows"]


def describe(device: str) -> str:
    """Raises ValueError on another device than the CPU."""
    if device != "cpu":
        raise ValueError(f"numpy is measured on device cpu; got {device}")
    return "OpenBLAS"


def rows(problem: Problem, device: str) -> list[Row]:
    """The forward pass and the encoder, in float32: its searches are written to be read."""
    nested, config = parameters.nest(problem.tensors), problem.config
    if problem.task.kind not in ("forward", "encoder") or not problem.task.peers:
        return []

    def call() -> object:
        if problem.task.kind == "encoder":
            return reference.encode(nested, config, problem.source)
        return reference.transformer(nested, config, problem.source, problem.target)

    return [Row("numpy", "reference_numpy", lambda: call)]
