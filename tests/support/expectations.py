"""Cases, built once for all tests, and the reference's expectations, computed once for all processes of a run and for the next run.

A stored expectation is named by a digest of its inputs: the code of the reference and the judge, NumPy, and the case as run.
Without pytest's cache folder, expectations are kept only in this process. Tests of the expectation itself recompute it.
"""

import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation.expectation_store import Store, code
from rosettaformer.judge.expectation.tolerance import Expectation
from rosettaformer.judge.suite import all_cases

FOLDER = "ROSETTAFORMER_EXPECTATIONS"  # environment variable that names the folder; tests/conftest.py sets it


@functools.cache
def all_by_id() -> dict[str, Case]:
    """Every case by its id, including gradient cases."""
    return {case.id: case for case in all_cases(grad=True)}


def suite() -> tuple[Case, ...]:
    """Every case except gradient cases."""
    return tuple(all_cases())


def made_once(make: Callable[..., list[Case]]) -> Callable[..., list[Case]]:
    """`all_cases` with a cache of the last eight configs."""
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
    """Whether a config has these fields, in the notation of port files."""
    plain = config.to_dict()
    return all((plain[name] if name in plain else getattr(config, name)) == value for name, value in fields.items())


def expect(case: Case) -> dict[str, Expectation]:
    """`tolerance.expect` of a case that is already cast to its dtype."""
    return store().expect(case)


@functools.cache
def store() -> Store:
    """Returns the store of this code's expectations; removes those of other code."""
    if not (parent := os.environ.get(FOLDER)):
        return Store()
    own = Path(parent, code())
    for other in Path(parent).iterdir():
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    return Store(own)
