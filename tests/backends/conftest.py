"""Fixtures for tests that check the same of each port, or of all four implementations."""

from collections.abc import Callable
from typing import Any

import pytest
from backends import FOUR, PORTS, Backend, answerer

from rosettaformer.judge.case import Case


@pytest.fixture(scope="module", params=PORTS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture(scope="module", params=FOUR)
def answer(request: pytest.FixtureRequest) -> Callable[[Case], dict[str, Any]]:
    return answerer(request.param)
