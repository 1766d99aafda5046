"""Where an embedding ends: at the module around the table that multiplies its rows, too."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..conformance.ports.adapters.matching import walk
from .failures import FAILURES
from .parts import Part, Row
from .vocabulary import within
from .walking import tensor

__all__ = ["outer_embeddings"]


def outer_embeddings(part: Part, module: Any, framework: str) -> None:
    """Binds each embedding to the innermost module around its table that gives the rows by a constant other than 1, if there is one."""
    if framework == "torch":
        module.eval()
    for child in part.parts:
        if child.component != "embedding" or not child.native:
            continue
        (row,) = child.rows
        for native in _around(child.native):
            if _multiplies(walk(module, child.native), row.native, walk(module, native), framework):
                whole = f"{child.native}.{row.native}" if row.native else child.native
                child.native, child.rows = native, [Row(row.name, within(whole, native), row.axes)]
                break


def _around(native: str) -> Iterator[str]:
    while "." in native:
        native = native.rpartition(".")[0]
        yield native


def _multiplies(inner: Any, table: str, outer: Any, framework: str) -> bool:
    """Whether the outer module gives the rows of the inner one's table by a constant that is not 1."""
    with contextlib.suppress(*FAILURES):
        ids = np.array([[1, 2, 3], [4, 3, 2]])
        rows = _array(walk(inner, table), framework)[ids]
        found = _array(outer(tensor(ids, framework)), framework)
        constant = float((found * rows).sum() / (rows * rows).sum())
        return np.allclose(found, constant * rows, rtol=1e-4, atol=1e-6) and abs(constant - 1) > 1e-3
    return False


def _array(value: Any, framework: str) -> np.ndarray:
    if framework == "torch":
        return value.detach().cpu().numpy()
    return np.asarray(value.get_value() if hasattr(value, "get_value") else value)
