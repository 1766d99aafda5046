"""What the reference expects of a case is computed once for all diagnoses, as it is for other tests."""

import pytest
from expectations import store

from rosettaformer.conformance.diagnosis import hypotheses, parts


@pytest.fixture(autouse=True)
def one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Store", store)
    monkeypatch.setattr(hypotheses, "Store", store)
