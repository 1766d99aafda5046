"""Computes the reference's expectations once for all diagnoses, as for other tests."""

from types import SimpleNamespace

import pytest
from expectations import expect, store

from rosettaformer.judge.diagnosis import port_diagnosis
from rosettaformer.judge.diagnosis.divergence import teacher
from rosettaformer.judge.diagnosis.hypotheses import hypotheses


@pytest.fixture(autouse=True)
def one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_diagnosis, "Store", store)
    monkeypatch.setattr(hypotheses, "Store", store)
    monkeypatch.setattr(teacher, "tolerance", SimpleNamespace(**{**vars(teacher.tolerance), "expect": expect}))
