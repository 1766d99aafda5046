"""The record of the calls of a torch model's modules."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from impl_torch.weights import to_numpy

from ..kinds import SPATIAL
from .base import Called, tensors
from .torch_axes import Followed

__all__ = ["called", "is_tensor", "watched"]


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def called(path: str, index: int, given: list[np.ndarray], tags: list[Any], output: Any, followed: Followed) -> Called:
    outputs = list(tensors(output, is_tensor))
    return Called(path, index, given, [to_numpy(tensor) for tensor in outputs], tags, [followed.of(tensor) for tensor in outputs])


@contextlib.contextmanager
def watched(paths: Sequence[tuple[str, torch.nn.Module, str]], calls: list[Called], templates: Any, followed: Followed) -> Iterator[None]:
    """Records the calls, by hooks. A module that stands at several paths is known by its first."""
    counts: dict[str, int] = {}
    open_: list[tuple[str, int, list[np.ndarray], list[Any]]] = []
    handles = []
    for path, part, kind in paths:

        def before(module: Any, args: Any, kwargs: Any, path: str = path, kind: str = kind) -> None:
            index = counts[path] = counts.get(path, -1) + 1
            templates[path, index] = (args, kwargs)
            given = list(tensors([args, kwargs], is_tensor))  # copied now, since a layer may overwrite what it is given
            if kind in (*SPATIAL, "batch_norm", "group_norm"):
                followed.assume(given[0])
            open_.append((path, index, [to_numpy(tensor) for tensor in given], [followed.of(tensor) for tensor in given]))

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            calls.append(called(*open_.pop(), output, followed))

        handles += [part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after, with_kwargs=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
