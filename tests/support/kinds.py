"""The kind of each test. `pytest --kind unit --kind product` runs the tests of these kinds.

- unit: functions, in this process. A unit test that starts another process fails.
- product: commands and documents, end to end.
- conformance: every case, mutant, family and framework, and whole models. Hours.
- evidence: bugs written without sight of the catalogue, random configurations, pretrained weights.

A test has the kind of its folder. A marker with the name of a later kind overrides that for a module
(`pytestmark`), a test or a parameter. If a test has several markers, the last in this list counts.
"""

import multiprocessing.util
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

KINDS = ("unit", "product", "conformance", "evidence")
FOLDERS = {
    "artefacts": "product",
    "backends": "unit",
    "benchmarks": "product",
    "checkpoints": "product",
    "commands": "product",
    "comparison": "product",
    "diagnosis": "unit",
    "guide": "product",
    "house": "product",
    "impl_jax": "unit",
    "impl_tf": "unit",
    "impl_torch": "unit",
    "inference": "product",
    "judge": "unit",
    "proposals": "product",
    "reference": "unit",
    "training": "product",
}
STARTS = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.util, "spawnv_passfds"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
)


def conformance(*values: Any) -> Any:
    """Marks a parameter's test as kind conformance. A single tuple has the values of several names."""
    value = values[0] if len(values) == 1 else values
    if not hasattr(value, "marks"):
        value = pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
    return value._replace(marks=(*value.marks, pytest.mark.conformance))


def every(nth: int, values: Iterable[Any]) -> list[Any]:
    """Keeps the kind of every nth parameter; the others become kind conformance."""
    return [conformance(value) if index % nth else value for index, value in enumerate(values)]


def kind_of(item: pytest.Item) -> str:
    """Returns the kind of a test. Raises UsageError if its folder has none."""
    folder = item.nodeid.split("/")[1]
    if folder not in FOLDERS:
        raise pytest.UsageError(f"tests/{folder} has no kind: add it to FOLDERS in tests/support/kinds.py")
    for marks in (item.own_markers, item.iter_markers()):
        if found := {mark.name for mark in marks}.intersection(KINDS):
            return max(found, key=KINDS.index)
    return FOLDERS[folder]


@contextmanager
def no_processes() -> Iterator[None]:
    """A context in which starting another process fails the test."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a unit test must start no process: call the function here, or mark the test `product`")

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STARTS:
            patch.setattr(owner, name, refuse)
        yield
