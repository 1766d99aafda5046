"""No false alarm: random valid configurations and inputs conform on every port."""

import pytest
from random_cases import random_case
from tiers import every

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import DTYPES
from rosettaformer.conformance.ports.port import PORTS


@pytest.mark.parametrize("many", [pytest.param(False, marks=pytest.mark.sample), pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("port", every(3, PORTS))
def test_random_configurations_conform(port: str, many: bool, request: pytest.FixtureRequest) -> None:
    cases = [random_case(seed) for seed in range(request.config.getoption("--soak") if many else 2)]
    dtypes = DTYPES if many else ("float32",)
    results = runner.run(cases, [port], dtypes)
    assert [result for result in results if result.status != "pass"] == []
    assert len(results) == len(cases) * len(dtypes)
