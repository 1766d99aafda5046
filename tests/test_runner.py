"""The runner: whatever a port does is a row, and the run goes on."""

import dataclasses

import pytest

from rosettaformer.conformance import runner
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.report.summary import Summary

PLAIN = next(case for case in all_cases() if case.id == "layer_norm/plain")
PORT = "misbehaving_port"


def _cases(*names: str, **changes: object) -> list[Case]:
    return [dataclasses.replace(PLAIN, name=name, twice=name == "random", **changes) for name in names]


@pytest.fixture(scope="module")
def rows() -> dict[str, runner.Result]:
    names = (
        "good",
        "crash",
        "nan",
        "exit",
        "shape",
        "hang",
        "dtype",
        "raise",
        "nothing",
        "wrong",
        "unsupported",
        "garbage",
        "random",
        "last",
    )
    results = runner.run(_cases(*names), [PORT], ["float64"], limit=3)
    assert [result.case for result in results] == [f"layer_norm/{name}" for name in names]
    return {result.case.partition("/")[2]: result for result in results}


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("good", "pass", ""),
        ("crash", "crash", "the port's process ended with signal 11"),
        ("exit", "crash", "the port's process ended with exit code 7"),
        ("hang", "hang", "no answer within 3 s"),
        ("nan", "differs", "are NaN where the truth is not"),
        ("shape", "differs", "must have shape (3, 5, 13); got (3, 5, 12)"),
        ("dtype", "differs", "must be float64; got float32"),
        ("raise", "error", "RuntimeError: no such thing (misbehaving_port.py:"),
        ("nothing", "differs", "must be an array; got NoneType"),
        ("wrong", "differs", "allowed"),
        ("unsupported", "unsupported", "aten::made_up"),
        ("garbage", "pass", ""),
        ("random", "error", "two evaluations of the same input differ"),
        ("last", "pass", ""),
    ],
)
def test_what_a_port_does_is_its_row(rows: dict[str, runner.Result], name: str, status: str, message: str) -> None:
    assert rows[name].status == status
    assert message in rows[name].message


def test_the_summary_counts_failures_apart_from_what_was_not_compared(rows: dict[str, runner.Result]) -> None:
    summary = Summary(list(rows.values()))
    assert summary.compared == 13
    assert len(summary.failed) == 10
    assert dict(summary.not_compared) == {(PORT, "unsupported", "aten::made_up"): 1}
    assert not summary.conforms


def test_a_component_that_the_port_lacks_is_not_covered_and_nothing_conforms() -> None:
    results = runner.run([case for case in all_cases() if case.id == "softmax/plain"], [PORT], ["float32"])
    assert [result.status for result in results] == ["not covered"]
    assert not Summary(results).conforms


def test_a_port_that_keeps_crashing_is_given_up_and_fails() -> None:
    results = runner.run(_cases(*["crash"] * 6), [PORT], ["float64"])
    assert [result.status for result in results] == ["crash"] * 4 + ["skipped"] * 2
    assert not Summary(results).conforms


def test_a_port_that_cannot_be_imported_is_an_error_row() -> None:
    results = runner.run(_cases("good"), ["no_such_port"], ["float64"])
    assert [(result.status, result.message) for result in results] == [("error", "ModuleNotFoundError: No module named 'no_such_port'")]
    assert not Summary(results).conforms


def test_a_device_that_is_not_there_is_skipped_with_the_reason() -> None:
    results = runner.run(_cases("good"), [PORT], ["float64"], devices=["cuda"])
    assert [(result.status, result.message) for result in results] == [("skipped", "no cuda device")]
    assert not Summary(results).conforms


def test_nothing_at_all_does_not_conform() -> None:
    assert not Summary([]).conforms
