"""Mistakes that were written without sight of the catalogue: caught, named or described, and never named wrongly."""

import re
from pathlib import Path

import pytest
import wild

from rosettaformer.conformance import runner
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.status import FAILURES

pytestmark = pytest.mark.evidence

PAGE = (Path(__file__).parents[2] / "docs" / "wild.md").read_text()
MISTAKES = wild.mistakes()
EVERY = 20
SAMPLE = [pytest.param(mistake, id=mistake.id) for mistake in MISTAKES[EVERY // 2 :: EVERY]]


def test_the_page_has_every_mistake_what_was_said_at_first_sight_and_no_wrong_name() -> None:
    caught, named = re.findall(r": (\d+) of (\d+)", PAGE.partition("## At first sight")[0])
    assert {mistake.id for mistake in MISTAKES} == set(re.findall(r"^\| (\w+) \| (?!what)", PAGE, re.MULTILINE))
    assert caught == (str(len(MISTAKES)),) * 2
    assert int(named[0]) >= 0.75 * int(named[1])
    assert "- Wrong names: 0." in PAGE
    assert PAGE.endswith("\n".join(wild.second()) + "\n")


@pytest.mark.parametrize("mistake", SAMPLE)
def test_the_page_says_what_diagnosis_says(mistake: wild.Mistake, tmp_path: Path) -> None:
    """`make wild` takes all."""
    said = wild.say(mistake, tmp_path)
    assert said.diagnosis.findings
    assert not said.wrong
    assert wild.row(said) in PAGE


@pytest.mark.parametrize(
    "file", sorted({mistake.file for mistake in MISTAKES} | {f"second/{mistake.file}" for mistake in wild.mistakes(wild.FOLDER / "second")})
)
def test_without_a_mistake_the_file_conforms(file: str) -> None:
    results = runner.run([case for case in all_cases() if case.core], [str(wild.FOLDER / file)], ["float64"])
    assert [(result.case, result.message) for result in results if result.status in FAILURES] == []
    assert any(result.status == "pass" for result in results)
