"""No false alarms: random valid configurations and inputs conform on every port."""

import pytest
from conforming import conform
from kinds import every
from random_cases import random_case

from rosettaformer.common.backends import PORTS
from rosettaformer.judge.case import DTYPES


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("port", every(3, PORTS))
def test_random_configurations_conform(port: str, many: bool, request: pytest.FixtureRequest) -> None:
    cases = [random_case(seed) for seed in range(request.config.getoption("--soak") if many else 2)]
    conform(cases, port, DTYPES if many else ("float32",), here=not many)
