"""Cases, and what the reference expects of them, are made once for all diagnoses, as they are for other tests."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from expectations import expect, store

from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.diagnosis import hypotheses, parts, subject
from rosettaformer.conformance.diagnosis.divergence import teacher


@pytest.fixture(scope="session")
def cases_once() -> Callable[..., Sequence[Case]]:
    """`all_cases`, which remembers what it has made."""
    made: dict[str, Sequence[Case]] = {}

    def cases(*given: Any) -> Sequence[Case]:
        if repr(given) not in made:
            made[repr(given)] = all_cases(*given)
        return made[repr(given)]

    return cases


@pytest.fixture(autouse=True)
def one_store(monkeypatch: pytest.MonkeyPatch, cases_once: Callable[..., Sequence[Case]]) -> None:
    monkeypatch.setattr(subject, "all_cases", cases_once)
    monkeypatch.setattr(parts, "Store", store)
    monkeypatch.setattr(hypotheses, "Store", store)
    monkeypatch.setattr(teacher, "tolerance", SimpleNamespace(**{**vars(teacher.tolerance), "expect": expect}))
