"""Cases on a port in this process, which loads its framework once for all tests; or in one of its own, as users run them."""

import contextlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import expectations
from backends import Backend
from in_process import InProcess

from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports import session

__all__ = ["conform"]


def conform(cases: Sequence[Case], port: str, dtypes: Sequence[str], here: bool = True, **options: Any) -> int:
    """Asserts that the port passes them all, and returns how many; here: in this process."""
    Backend(port)  # skips the test where the framework is not installed
    with mock.patch.object(session, "open_worker", InProcess) if here else contextlib.nullcontext():
        results = runner.run(cases, [port], dtypes, store=expectations.store(), **options)
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == sum(dtype in case.dtypes for case in cases for dtype in dtypes)
    return len(results)
