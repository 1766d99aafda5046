"""The shared output-equivalence tests: every case, in every dtype, on every port; and the other mode of each port on its core."""

from collections.abc import Callable

import pytest
from conforming import conform
from expectations import suite
from kinds import conformance

from rosettaformer.common.backends import PORTS
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation.components import COMPONENTS, SEARCHES, is_layout
from rosettaformer.judge.suite import all_cases

CASES = [case for case in suite() if not is_layout(case.component)]
CORE = [case for case in CASES if case.core]
# One case per component, except searches (see `test_decoding`) and large random arrays.
FIRST = [*{case.component: case for case in reversed(CORE) if case.component not in (*SEARCHES, "initialise")}.values()]
OTHERS = [case for case in CORE if case.id not in {first.id for first in FIRST}]
FLOAT64 = [(port, "float64") for port in PORTS]
OTHER_MODE = {"torch": "compiled", "tf": "compiled", "jax": "eager"}
OTHER_MODE_CASES = ("transformer/left_padding", "decoder_layer/left_padding", "scaled_dot_product_attention/bias_minus_infinity")


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("port", "dtype"),
    [
        ("torch", "float32"),
        *(pytest.param(port, dtype, marks=pytest.mark.conformance) for port, dtype in (("torch", "bfloat16"), *FLOAT64)),
    ],
)
def test_every_case_conforms(port: str, dtype: str, record_property: Callable[[str, object], None]) -> None:
    """In float64, whose tolerance is the tightest; `rosettaformer check --full` runs every case in every dtype."""
    record_property("cases compared", conform(CASES, port, [dtype], here=False))


@pytest.mark.parametrize(
    ("port", "cases"),
    [("torch", CORE), *((port, FIRST) for port in ("tf", "jax")), *(conformance((port, OTHERS)) for port in ("tf", "jax"))],
    ids=["torch", "tf", "jax", "tf-others", "jax-others"],
)
def test_core_cases_conform(port: str, cases: list[Case], record_property: Callable[[str, object], None]) -> None:
    record_property("cases compared", conform(cases, port, ["float32"]))


@pytest.mark.parametrize("dtype", [conformance("bfloat16"), pytest.param("float16", marks=pytest.mark.conformance)])
@pytest.mark.parametrize("port", PORTS)
def test_core_cases_conform_in_half_precision(port: str, dtype: str, record_property: Callable[[str, object], None]) -> None:
    record_property("cases compared", conform(CORE, port, [dtype]))


@pytest.mark.conformance
def test_core_cases_conform_as_xla_compiles_them_for_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    conform(CORE, "jax", ["float32"], here=False)


@pytest.mark.conformance
@pytest.mark.parametrize("port", PORTS)
def test_the_other_mode_conforms(port: str) -> None:
    cases = [case for case in CASES if case.id in OTHER_MODE_CASES]
    conform(cases, port, ["float32", "bfloat16"], here=False, modes=[OTHER_MODE[port]], limit=300)


def test_every_component_has_core_cases_and_ids_are_unique() -> None:
    assert {case.component for case in all_cases(grad=True) if case.core} == set(COMPONENTS)
    assert len({case.id for case in CASES}) == len(CASES)
