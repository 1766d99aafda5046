"""Cases, made once for all tests; and what the reference expects of a case, computed once for every process of a run and for the next run.

What is kept has the digest of what it depends on as its name: the code of the reference and of the judge, NumPy, and the case as it is run.
Without pytest's cache folder it is kept in this process alone. A test of the expectation itself computes it anew.
"""

import functools
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import tolerance
from rosettaformer.judge.expectation.expectation_store import Store, digest
from rosettaformer.judge.expectation.tolerance import Expectation
from rosettaformer.judge.suite import all_cases

__all__ = ["FOLDER", "all_by_id", "expect", "has", "made_once", "store", "suite"]

FOLDER = "ROSETTAFORMER_EXPECTATIONS"  # the variable that names the folder; tests/conftest.py sets it
HOUSE = Path(__file__).parents[2]


@functools.cache
def all_by_id() -> dict[str, Case]:
    """Every case by its id, gradients among them."""
    return {case.id: case for case in all_cases(grad=True)}


def suite() -> tuple[Case, ...]:
    """Every case but the gradients."""
    return tuple(all_cases())


def made_once(make: Callable[..., list[Case]]) -> Callable[..., list[Case]]:
    """`all_cases`, which remembers the cases of the last eight configs that it is given."""
    made: dict[str, list[Case]] = {}

    @functools.wraps(make)
    def remembered(fixed: Mapping[str, Any] | None = None, grad: bool = False, shared: Sequence[str] = ()) -> list[Case]:
        key = repr((fixed or {}, grad, [*shared]))
        made[key] = made.pop(key, None) or make(fixed, grad, shared)
        if len(made) > 8:
            del made[next(iter(made))]
        return [*made[key]]

    return remembered


def has(config: TransformerConfig, fields: Mapping[str, Any]) -> bool:
    """Whether a config has these fields, as files of ports write them."""
    plain = config.to_dict()
    return all((plain[name] if name in plain else getattr(config, name)) == value for name, value in fields.items())


def expect(case: Case) -> dict[str, Expectation]:
    """`tolerance.expect` of a case that has been cast to its dtype."""
    return store().expect(case)


class _OnDisk(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def expect(self, case: Case) -> dict[str, Expectation]:
        path = self._folder / digest(case)[:40]
        if path.exists():
            return pickle.loads(path.read_bytes())
        found = tolerance.expect(case)
        self._folder.mkdir(exist_ok=True)  # a run of changed code may have removed it
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            pickle.dump(found, file)
        os.replace(file.name, path)
        return found


@functools.cache
def store() -> Store:
    """The store of what this code expects; what other code expected is removed."""
    if not (parent := os.environ.get(FOLDER)):
        return Store()
    state = hashlib.sha256(np.__version__.encode())
    for package in ("reference_numpy", "rosettaformer/judge"):
        for path in sorted((HOUSE / package).rglob("*.py")):
            state.update(path.read_bytes())
    own = Path(parent, state.hexdigest()[:16])
    for other in Path(parent).iterdir():
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(exist_ok=True)
    return _OnDisk(own)
