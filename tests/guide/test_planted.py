"""A plain file with a known bug, as the guide shows it, equals the altered reference."""

import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
from kinds import every

from reference_numpy import parameters
from rosettaformer.guide.planted import FOLDER, Edit, applied, planted
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Defect, all_defects
from rosettaformer.judge.diagnosis import altered
from rosettaformer.judge.expectation import statistics, tolerance
from rosettaformer.judge.expectation.components import named_outputs
from rosettaformer.judge.ports.port import NotCovered
from rosettaformer.judge.suite import all_cases

MOST = 3  # cases per bug: core ones and the smallest first


@functools.cache
def cases() -> Mapping[str, Case]:
    """Returns all cases in float64: core ones first, smallest first."""
    ordered = sorted(all_cases(grad=True), key=lambda case: (not case.core, case.size))
    return {case.id: case.at("float64") for case in ordered}


@functools.cache
def clean(identity: str) -> Mapping[str, tolerance.Expectation]:
    return tolerance.expect(cases()[identity])


class Planted:
    """A plain file with edits, as a port. ran: the edited functions that the last call used."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        torch = pytest.importorskip("torch")
        module = types.ModuleType("plain")
        with mock.patch.object(sys, "path", [*sys.path, str(FOLDER)]):
            port = importlib.import_module(f"port_{edits[0].file[6:-3]}")
            exec(applied(edits), module.__dict__)
        self.ran: list[str] = []
        for name in {edit.function for edit in edits}:
            setattr(module, name, self._noted(getattr(module, name)))
        self.functions = port.Port(module, torch.tensor).functions()

    def _noted(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def noting(*given: Any, **named: Any) -> Any:
            self.ran.append(function.__name__)
            return function(*given, **named)

        return noting

    def answer(self, case: Case) -> dict[str, Any]:
        self.ran.clear()
        if case.component not in self.functions:
            raise NotCovered(case.component)
        case = dataclasses.replace(case, inputs=parameters.nest(case.inputs))
        found = self.functions[case.component](case)
        return statistics.measured(case.component, case.inputs, named_outputs(found))


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(usual)


def complaint(bug: Defect, edits: Sequence[Edit]) -> str:
    """Returns how the plain file with these edits differs from the altered reference.

    They are compared on the bug's first cases that run an edit. At least one of these cases must reject the
    output.
    """
    port = Planted(edits)
    answered = refused = 0
    for case in cases().values():
        if bug.id not in case.catches or answered == MOST:
            continue
        try:
            outputs = port.answer(case)
        except NotCovered:
            continue
        except Exception as error:
            if not port.ran or altered.answer((bug,), case) is not None:
                return f"{case.id}: {type(error).__name__}: {error}"
            outputs = {}
        if not port.ran:
            continue
        answered += 1
        refused += not altered.equal(clean(case.id), outputs)
        if outputs and not altered.equal(altered.expected((bug,), case, outputs), outputs):
            return f"{case.id}: is not the reference with {bug.name}"
    return "" if refused else f"none of {answered} cases refuses it"


@pytest.mark.parametrize("identity", every(12, planted()))
def test_a_planted_bug_is_the_altered_reference(identity: str) -> None:
    assert complaint(all_defects()[identity], planted()[identity]) == ""


def test_an_edit_that_is_no_bug_or_another_one_is_refused() -> None:
    right = '    return normalised_btd * parameters["scale"] + parameters["offset"]\n'
    for edits in ([Edit("plain_pytorch.py", "layer_norm", right, right)], planted()["NRM2"]):
        assert complaint(all_defects()["NRM1"], edits)


@pytest.mark.parametrize("right", ["    return 1\n", "    x_btd"])
def test_an_edit_that_does_not_fit_is_refused(right: str) -> None:
    with pytest.raises(ValueError, match="once"):
        applied([Edit("plain_pytorch.py", "layer_norm", right, "")])
