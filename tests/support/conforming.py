"""Runs cases on a port: in this process, where its framework is imported once for all tests, or in its own process, as users do."""

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


def conform(cases: Sequence[Case], port: str, dtypes: Sequence[str], here: bool = True, **options: Any) -> int:
    """Asserts that the port passes all cases in this process, and returns their number."""
    Backend(port)  # skips the test if the framework is not installed
    with mock.patch.object(session, "open_worker", InProcess) if here else contextlib.nullcontext():
        results = runner.run(cases, [port], dtypes, store=expectations.store(), **options)
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == sum(dtype in case.dtypes for case in cases for dtype in dtypes)
    return len(results)
