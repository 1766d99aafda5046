"""Progress of long commands: without a terminal, one line at the start and then lines with the remaining time."""

import io
import re
import time
from pathlib import Path

import pytest
from invoke import succeeded
from rich.console import Console

from rosettaformer.commands import progress
from rosettaformer.use.training import run_log


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time in seconds that all code reads."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_where_there_is_no_terminal_lines_come_at_the_start_and_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress.Working("writing", 20, "about a minute", "cases", Console(file=stream)) as working:
        for _ in range(19):
            clock[0] += 10
            working.advance()
    first, *rest = stream.getvalue().splitlines()
    assert "about a minute" in first and len(rest) == 9  # one line per two steps of ten seconds
    numbers = [re.search(r"(\d+) of 20 cases after .*, about (.*) left", line) for line in rest]
    assert [found and int(found[1]) for found in numbers[2:]] == [6, 8, 10, 12, 14, 16, 18]
    assert numbers[-1] and numbers[-1][2] == "20 s"


@pytest.mark.parametrize("total", [None, 100])
def test_before_the_first_step_it_says_what_it_does_and_for_how_long(clock: list[float], total: int | None) -> None:
    stream = io.StringIO()
    with progress.Working("comparing", total, unit="%", console=Console(file=stream)) as working:
        working.at("building")
        clock[0] = 100
        working.at("gradients")
    assert stream.getvalue() == "gradients: 1 min 40 s\n"


def test_training_says_how_long_it_will_take(clock: list[float]) -> None:
    report = run_log.Report()
    stream = report.console.file = io.StringIO()
    for number in range(1, 11):
        clock[0] += 30
        report.step(number, 1.0, 100, 0.5 + number / 100)
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == ["step 3", "step 6", "step 9"]
    assert stream.getvalue().splitlines()[-1].endswith("about 21 min left")


@pytest.mark.conformance
def test_vectors_say_at_the_start_how_many_cases_they_are(tmp_path: Path) -> None:
    found = succeeded("vectors", "export", "vectors", "--component", "softmax", folder=tmp_path)
    assert found.err.count("\n") == 1 and found.err.startswith("writing vectors, ")
    found = succeeded("vectors", "verify", "vectors", folder=tmp_path)
    assert found.err and found.out == "identical\n"
