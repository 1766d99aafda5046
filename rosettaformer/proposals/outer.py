"""Finds where an embedding ends: at the module around the table that also multiplies its rows."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..modules import face
from ..modules.attributes import at
from .failures import FAILURES, limited
from .parts import Part, Row
from .subject import Subject
from .vocabulary import within


def outer_embeddings(part: Part, subject: Subject) -> None:
    """Binds each embedding to the innermost module around its table that returns the rows times a constant other than 1, if any."""
    if subject.framework == "torch":
        subject.module.eval()
    for child in part.parts:
        if child.component != "embedding" or not child.native:
            continue
        (row,) = child.rows
        whole = f"{child.native}.{row.native}" if row.native else child.native
        for native in _around(child.native):
            if _multiplies(whole, native, subject):
                child.native, child.rows = native, [Row(row.name, within(whole, native), row.axes)]
                break


def _around(native: str) -> Iterator[str]:
    while "." in native:
        native = native.rpartition(".")[0]
        yield native


def _multiplies(table: str, outer: str, subject: Subject) -> bool:
    """Whether the outer module returns the rows of the table times a constant that is not 1."""
    with contextlib.suppress(*FAILURES), limited(f"a call of {outer}"):
        if subject.framework == "linen":  # its parts have no parameters of their own
            given, gave = subject.started.calls[outer]
            values = subject.started.variables[table]
        else:
            given = np.array([[1, 2, 3], [4, 3, 2]])
            gave, values = at(subject.module, outer)(face(subject.framework).tensor(given)), at(subject.module, table)
        rows, found = _array(values, subject.framework)[np.asarray(given)], _array(gave, subject.framework)
        constant = float((found * rows).sum() / (rows * rows).sum())
        return np.allclose(found, constant * rows, rtol=1e-4, atol=1e-6) and abs(constant - 1) > 1e-3
    return False


def _array(value: Any, framework: str) -> np.ndarray:
    if framework == "torch":
        return value.detach().cpu().numpy()
    return np.asarray(value.get_value() if hasattr(value, "get_value") else value)
