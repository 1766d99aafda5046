"""A port gets every case; a port that pins a suite release does not get later cases, and the report counts them."""

import dataclasses
from pathlib import Path

import pytest
from expectations import all_by_id

from rosettaformer.judge import runner
from rosettaformer.judge.case import SUITE_RELEASE
from rosettaformer.judge.ports.port import Port
from rosettaformer.judge.report import grouping
from rosettaformer.judge.suite.asked import Suite, asked
from rosettaformer.judge.summary import Summary

OLD = all_by_id()["softmax/large_masked"]
NEW = dataclasses.replace(OLD, name="made_up", release=SUITE_RELEASE + 1)
PORT = "{suite}\nfrom rosettaformer.judge.expectation.components import answer as softmax\n"


def port(folder: Path, suite: str) -> str:
    path = folder / f"pinning_{abs(hash(suite))}.py"
    path.write_text(PORT.format(suite=suite))
    return str(path)


@pytest.mark.product
def test_a_port_that_pins_a_release_is_not_asked_later_cases_and_they_are_counted(tmp_path: Path) -> None:
    free, pinning = port(tmp_path, ""), port(tmp_path, f"suite = {SUITE_RELEASE}")
    summary = Summary(runner.run([OLD, NEW], [free, pinning], ["float64"]))
    statuses = {(result.port, result.case): result.status for result in summary.results}
    assert statuses.pop((pinning, NEW.id)) == "not covered" and {*statuses.values()} == {"pass"}
    (reason,) = grouping.reasons(summary)
    assert (reason.count, bool(reason.remedy)) == (1, True)


@pytest.mark.parametrize("suite", [SUITE_RELEASE + 1, 0, "1", True])
def test_a_release_that_there_is_not_is_refused(tmp_path: Path, suite: object) -> None:
    with pytest.raises(ValueError, match=f"suite .*got {suite!r}"):
        Port(port(tmp_path, f"suite = {suite!r}"))


def test_a_command_pins_a_release_as_a_file_does() -> None:
    suite, free = Suite([OLD, NEW]), {"config": {}}
    assert [bool(case.excluded) for case in asked(suite, free | {"suite": SUITE_RELEASE}).cases] == [False, True]
    assert [bool(case.excluded) for case in asked(suite, free).cases] == [False, False]
