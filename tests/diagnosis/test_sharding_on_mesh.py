"""Diagnosis of a port on a mesh: one finding per fault, the outputs of processes that disagree, and the rest after a timeout."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from expectations import store
from messages import mentions

from reference_numpy.sharding import Mesh
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue.sharded import all_faults
from rosettaformer.judge.diagnosis import mesh_diagnosis
from rosettaformer.judge.diagnosis.findings import Diagnosis, Verdict
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.mesh import answer
from rosettaformer.judge.ports import session
from rosettaformer.judge.status import Kind
from rosettaformer.judge.suite.meshes import mesh_cases

MESH = Mesh(data=2, model=4)
CASES = [
    case
    for case in mesh_cases([MESH])
    if case.id in ("transformer/sharded_olmo2", "transformer_vjp/sharded_olmo2", "rms_norm/sharded_plain")
]
Answer = tuple[str, Any]


class Worker:
    """A port that returns a function's result; disagreeing processes return `apart`."""

    greeting = Kind.READY, {"dtypes": ["float64"], "modes": ["eager"], "components": (), "on_mesh": True, "config": {}, "loaded": "jax"}
    port, left = "a port", 0
    apart: Sequence[Any] = ()

    def __init__(self, gives: Callable[[Case], Answer], apart: Callable[[Case], Sequence[Any]]) -> None:
        self._gives, self._apart = gives, apart

    def ask(self, case: Case, limit: float) -> Answer:
        found = self._gives(case)
        self.apart = self._apart(case) if found[0] == Kind.DIFFERS else ()
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Diagnosis]]:
    monkeypatch.setattr(mesh_diagnosis, "Store", store)

    def run(gives: Callable[[Case], Answer], apart: Callable[[Case], Sequence[Any]] = lambda case: (), **options: Any) -> Diagnosis:
        monkeypatch.setattr(session, "open_worker", lambda *_, **__: Worker(gives, apart))
        return mesh_diagnosis.diagnose("a port", CASES, **options)

    yield run


def _with(id_: str) -> Callable[[Case], dict[str, np.ndarray]]:
    return lambda case: answer(case, all_faults()[id_].operations)


def test_one_fault_of_several_components_is_one_finding_with_the_fix_of_the_framework(diagnosed: Callable[..., Diagnosis]) -> None:
    (found,) = diagnosed(lambda case: (Kind.OUTPUTS, _with("SHD5")(case))).findings
    assert (found.component, found.verdict, found.explanations) == ("transformer, transformer_vjp", Verdict.EXPLAINED, (("SHD5",),))
    assert mentions(found.text, "transformer, transformer_vjp … data=2,model=4 … SHD5")
    assert found.text.endswith(all_faults()["SHD5"].fix["jax"])


def test_cases_that_are_not_asked_are_said(diagnosed: Callable[..., Diagnosis], monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = (case for case in CASES if case.component == "transformer")
    asked = [dataclasses.replace(one, name=name) for name in ("first", "second", "third")]
    monkeypatch.setattr(mesh_diagnosis, "FEW", 0)
    monkeypatch.setattr(sys.modules[__name__], "CASES", asked)
    (found,) = diagnosed(lambda case: (Kind.OUTPUTS, _with("SHD5")(case))).findings
    assert "2 more cases" in found.text.splitlines()[0]


def test_nothing_is_found_of_a_right_port(diagnosed: Callable[..., Diagnosis]) -> None:
    assert diagnosed(lambda case: (Kind.OUTPUTS, components.answer(case))).findings == []


def test_what_the_first_process_gave_is_searched_where_they_disagree(diagnosed: Callable[..., Diagnosis]) -> None:
    def gives(case: Case) -> Answer:
        if case.component.endswith("_vjp"):
            return Kind.DIFFERS, "the processes disagree: one gradient"
        return Kind.OUTPUTS, components.answer(case)

    (found,) = diagnosed(gives, lambda case: [_with("SHD1")(case), components.answer(case)]).findings
    assert found.explanations == (("SHD1",),) and "the processes disagree: one gradient" in found.text
    (found,) = diagnosed(gives, lambda case: [components.answer(case)] * 2).findings
    assert found.verdict == Verdict.UNEXPLAINED and mentions(found.text, "differs … the processes disagree: one gradient")


def test_what_fails_otherwise_is_said_as_it_is(diagnosed: Callable[..., Diagnosis]) -> None:
    found = diagnosed(lambda case: (Kind.ERROR, "ValueError: no") if "norm" in case.component else (Kind.OUTPUTS, components.answer(case)))
    assert [(one.component, one.verdict) for one in found.findings] == [("rms_norm", Verdict.ERROR)]
    assert mentions(found.findings[0].text, "rms_norm/sharded_plain error … ValueError: no")


def test_the_facts_remain_when_time_is_up(diagnosed: Callable[..., Diagnosis], monkeypatch: pytest.MonkeyPatch) -> None:
    class Deadline(mesh_diagnosis.Deadline):
        left = 4

        def check(self) -> None:
            type(self).left -= 1
            if self.left < 0:
                raise mesh_diagnosis.TimeIsUp("the limit had passed")

    monkeypatch.setattr(mesh_diagnosis, "Deadline", Deadline)
    found = diagnosed(lambda case: (Kind.OUTPUTS, _with("SHD18")(case)), limit=1.0)
    (one,) = found.findings
    assert one.verdict == Verdict.STOPPED and "0.5 times" in one.text
    Deadline.left = 2
    assert diagnosed(lambda case: (Kind.OUTPUTS, _with("SHD5")(case)), limit=1.0).stopped == "the limit had passed"
