"""Cases, and what the reference expects of them, are made once for all diagnoses, as they are for other tests."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from expectations import expect, store

from rosettaformer.conformance import limits
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.diagnosis import hypotheses, parts
from rosettaformer.conformance.diagnosis.divergence import teacher

MADE: dict[str, Sequence[Case]] = {}


def cases_once(*given: Any) -> Sequence[Case]:
    """`all_cases`, which remembers what it has made."""
    if repr(given) not in MADE:
        MADE[repr(given)] = all_cases(*given)
    return MADE[repr(given)]


@pytest.fixture(autouse=True)
def one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "all_cases", cases_once)
    monkeypatch.setattr(parts, "Store", store)
    monkeypatch.setattr(hypotheses, "Store", store)
    monkeypatch.setattr(teacher, "tolerance", SimpleNamespace(**{**vars(teacher.tolerance), "expect": expect}))
