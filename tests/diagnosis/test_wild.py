"""Bugs written without sight of the catalogue: caught, named or described, and never misnamed."""

from pathlib import Path

import pytest
import wild

from rosettaformer.judge import runner
from rosettaformer.judge.status import FAILURES
from rosettaformer.judge.suite import all_cases

pytestmark = pytest.mark.evidence
MISTAKES = wild.mistakes()
EVERY = 20
SAMPLE = [pytest.param(mistake, id=mistake.id) for mistake in MISTAKES[EVERY // 2 :: EVERY]]


@pytest.mark.parametrize("mistake", SAMPLE)
def test_a_mistake_is_named_or_described(mistake: wild.Mistake, tmp_path: Path) -> None:
    """Tests a part; `make evidence STEP=wild` tests all."""
    said = wild.say(mistake, tmp_path)
    assert said.accepted and not said.wrong


@pytest.mark.parametrize("file", sorted(str(path.relative_to(wild.FOLDER)) for path in wild.FOLDER.rglob("*.py")))
def test_without_a_mistake_the_file_conforms(file: str) -> None:
    results = runner.run([case for case in all_cases() if case.core], [str(wild.FOLDER / file)], ["float64"])
    assert [(result.case, result.message) for result in results if result.status in FAILURES] == []
    assert any(result.status == "pass" for result in results)
