"""The known bugs that the guide shows are in a plain file what the catalogue says: the altered reference."""

import contextlib
import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pytest

from reference_numpy import parameters
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.catalogue import Defect, all_defects
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.diagnosis import altered
from rosettaformer.conformance.ports.port import NotCovered
from rosettaformer.conformance.reference import statistics, tolerance
from rosettaformer.conformance.reference.components import named_outputs
from rosettaformer.guide.planted import FOLDER, Edit, applied, planted

MOST = 4  # cases for each bug: core ones and the smallest first


@contextlib.contextmanager
def answering(text: str) -> Iterator[Callable[[Case], Any]]:
    """A function that answers cases by a plain file with this text, in float64."""
    torch = pytest.importorskip("torch")
    module = types.ModuleType("plain")
    exec(text, module.__dict__)
    with mock.patch.object(sys, "path", [*sys.path, str(FOLDER)]):
        functions = importlib.import_module("plain_port").Port(module, torch.from_numpy).functions()

    def answer(case: Case) -> Any:
        if case.component not in functions:
            raise NotCovered(case.component)
        return functions[case.component](dataclasses.replace(case, inputs=parameters.nest(case.inputs)))

    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield answer
    finally:
        torch.set_default_dtype(usual)


@functools.cache
def cases() -> Mapping[str, Case]:
    """Core cases first, the smallest of them first."""
    ordered = sorted(all_cases(grad=True), key=lambda case: (not case.core, case.size))
    return {case.id: case.at("float64") for case in ordered}


@functools.cache
def clean(identity: str) -> Mapping[str, tolerance.Expectation]:
    return tolerance.expect(cases()[identity])


def complaint(bug: Defect, answer: Callable[[Case], Any]) -> str:
    """What the answers are that the bug is not: a case must refuse them, and each must be the altered reference's.

    Of a bug that only rounds, or draws at random, the first alone can be asked.
    """
    refused = answered = 0
    for case in cases().values():
        if bug.id not in case.catches:
            continue
        try:
            outputs = statistics.measured(case.component, case.inputs, named_outputs(answer(case)))
        except NotCovered:
            continue
        answered += 1
        refused += any(compare(one, outputs[name]).excess > 1 for name, one in clean(case.id).items())
        if not (bug.rounding or bug.random) and not altered.equal(altered.expected((bug,), case, outputs), outputs):
            return f"{case.id}: is not the reference with {bug.name}"
        if answered == MOST:
            break
    return "" if refused else "no case refuses it" if answered else "no case was answered"


@pytest.mark.parametrize("identity", planted())
def test_a_planted_bug_is_the_altered_reference(identity: str) -> None:
    with answering(applied(planted()[identity])) as answer:
        assert complaint(all_defects()[identity], answer) == ""


def test_what_is_no_bug_or_another_one_is_refused() -> None:
    nothing = applied([Edit("plain_pytorch.py", "token_mask", "    return token != padding_id\n", "    return token != padding_id\n")])
    for identity, text in (("NRM1", nothing), ("NRM1", applied(planted()["NRM2"]))):
        with answering(text) as answer:
            assert complaint(all_defects()[identity], answer)


@pytest.mark.parametrize("right", ["    return 1\n", "    x_btd"])
def test_an_edit_that_does_not_fit_is_refused(right: str) -> None:
    with pytest.raises(ValueError, match="once"):
        applied([Edit("plain_pytorch.py", "layer_norm", right, "")])
