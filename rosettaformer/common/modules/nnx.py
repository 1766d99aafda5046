"""The interface for Flax NNX modules."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from flax import nnx

from .jax import device, eager, function, gradients, is_tensor, like, tensor, to_numpy
from .recording import Enter, Leave, patched

__all__ = ["calls", "device", "eager", "function", "gradients", "is_tensor", "like", "paths", "tensor", "to_numpy", "variables"]


def paths(module: nnx.Module) -> Iterator[tuple[str, Any]]:
    """Yields modules, not lists, by path, from the outermost; shared ones at their first path."""
    rows = [(".".join(map(str, path)), part) for path, part in nnx.iter_modules(module)]
    for path, part in sorted(rows, key=lambda row: len(row[0].split(".")) if row[0] else 0):
        if callable(part) or not path:
            yield path, part


def variables(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields every variable by path: parameters, statistics, and states of random numbers."""
    yield from ((".".join(map(str, path)), node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Variable))


def calls(rows: Iterable[tuple[str, Any]], enter: Enter, leave: Leave) -> contextlib.AbstractContextManager[None]:
    """Reports calls of modules."""
    return patched(rows, enter, leave, function)
