"""The mistakes that the guide shows: each is made in a copy of our port, and is what the catalogue says."""

import contextlib
import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kinds import conformance, every
from mistakes import ROOT, complaint, refused

from reference_numpy import parameters
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.catalogue import all_defects
from rosettaformer.conformance.catalogue.mistakes import FRAMEWORKS, Edit, all_mistakes, edited
from rosettaformer.conformance.ports.port import NotCovered
from rosettaformer.guide.defects import PLAIN, plain_mistakes

EVERY = [(identity, framework) for identity, made in all_mistakes().items() for framework in FRAMEWORKS if not made[framework].absent]

MOST = 8  # cases; `python tools/mistakes.py` runs all that claim a defect
# They compile for every case, or have many.
SLOW = (("PE15", "jax"), ("CAU7", "jax"), ("LOS5", "torch"), ("GEN3", "jax"), ("MHA15", "jax"), ("ATT3", "tf"), ("ATT18", "tf"))


def test_every_defect_is_shown_in_every_framework() -> None:
    assert set(all_mistakes()) == set(all_defects())
    for identity, made in all_mistakes().items():
        assert tuple(made) == FRAMEWORKS, identity
        for framework, mistake in made.items():
            assert bool(mistake.edits) != bool(mistake.absent), (identity, framework)
            assert mistake.variant in ("", *all_defects()[identity].variants), (identity, framework)
            assert all(len(line) <= 140 for edit in mistake.edits for line in edit.wrong.splitlines()), (identity, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_edit_still_fits_the_port(framework: str) -> None:
    for made in all_mistakes().values():
        texts = edited(made[framework].edits, ROOT / f"impl_{framework}")
        for name, text in texts.items():
            compile(text, name, "exec")


@pytest.mark.conformance
@pytest.mark.parametrize("identity, framework", EVERY)
def test_a_mistake_is_the_defect(identity: str, framework: str) -> None:
    assert complaint(all_defects()[identity], all_mistakes()[identity][framework], framework, MOST) == ""


@pytest.mark.parametrize("identity, framework", [conformance(each) if each in SLOW else each for each in EVERY[::50]])
def test_some_mistakes_are_their_defects(identity: str, framework: str) -> None:
    assert complaint(all_defects()[identity], all_mistakes()[identity][framework], framework) == ""


@contextlib.contextmanager
def plain_port(edits: Sequence[Edit]) -> Iterator[Callable[[Case], Any]]:
    """What answers cases by the plain versions in PyTorch with these edits."""
    torch = pytest.importorskip("torch")
    folder = ROOT / "rosettaformer" / "guide" / "snippets" / "components"
    module = types.ModuleType("plain")
    exec(edited(edits, folder)[PLAIN], module.__dict__)
    with mock.patch.object(sys, "path", [*sys.path, str(folder)]):
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


@pytest.mark.parametrize("identity", every(12, plain_mistakes()))
def test_a_mistake_as_people_write_it_is_the_defect(identity: str) -> None:
    """On the cases that the plain versions cover, in float64."""
    defect = all_defects()[identity]
    (chosen,) = (one for one in defect.hypotheses if not one.variant)
    with plain_port(plain_mistakes()[identity]) as answer:
        assert refused(dataclasses.replace(defect, dtypes=("float64",)), chosen, answer, False, MOST) == ""


def test_what_is_no_mistake_fits_nowhere_or_twice_is_refused(tmp_path: Path) -> None:
    defects, mistakes = all_defects(), all_mistakes()
    nothing = dataclasses.replace(mistakes["NRM1"]["torch"], edits=())
    assert "is not the reference with NRM1" in complaint(defects["NRM1"], nothing, "torch")
    assert complaint(defects["NRM1"], dataclasses.replace(nothing, differs="it does not"), "torch") == "no case refuses it"
    assert "is not the reference with NRM1" in complaint(defects["NRM1"], mistakes["NRM2"]["torch"], "torch")
    (tmp_path / "a.py").write_text("x = 1\ny = 2\nx = 1\n")
    for right, times in (("z", 0), ("x = 1\n", 2)):
        with pytest.raises(ValueError, match=f"holds them {times} times"):
            edited([Edit("a.py", right, "w")], tmp_path)
    assert edited([Edit("a.py", "y = 2\n", "y = 3\n")], tmp_path) == {"a.py": "x = 1\ny = 3\nx = 1\n"}
