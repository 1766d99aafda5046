"""The shared output-equivalence tests: every case, in every dtype, on every port; and the other mode of each port on its core."""

import pytest

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import DTYPES
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.ports.port import PORTS

CASES = all_cases()
QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # how XLA compiles, in half the time
OTHER_MODE = {"torch": "compiled", "tf": "compiled", "jax": "eager"}
OTHER_MODE_CASES = ("transformer/left_padding", "decoder_layer/left_padding", "scaled_dot_product_attention/bias_minus_infinity")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("port", PORTS)
def test_every_case_conforms(port: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if port == "jax":
        monkeypatch.setenv("XLA_FLAGS", QUICKLY)
    results = runner.run(CASES, [port], [dtype])
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == sum(dtype in case.dtypes for case in CASES)


@pytest.mark.slow
def test_core_cases_conform_as_xla_compiles_them_for_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    core = [case for case in CASES if case.core]
    results = runner.run(core, ["jax"], ["float32"])
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == len(core)


@pytest.mark.slow
@pytest.mark.parametrize("port", PORTS)
def test_the_other_mode_conforms(port: str) -> None:
    cases = [case for case in CASES if case.id in OTHER_MODE_CASES]
    results = runner.run(cases, [port], ["float32", "bfloat16"], modes=[OTHER_MODE[port]], limit=300)
    assert [result for result in results if result.status not in ("pass", "empty")] == []
    assert len(results) == 2 * len(OTHER_MODE_CASES)


def test_every_component_has_core_cases_and_ids_are_unique() -> None:
    from rosettaformer.conformance.reference.components import COMPONENTS

    assert {case.component for case in all_cases(grad=True) if case.core} == set(COMPONENTS)
    assert len({case.id for case in CASES}) == len(CASES)
