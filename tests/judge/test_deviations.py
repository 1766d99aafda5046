"""Declared expected failures, and cases newer than the declaration."""

import dataclasses
from pathlib import Path

import pytest
from expectations import suite
from messages import each_mentions, mentions

from rosettaformer.judge import deviations
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import FAILURES
from rosettaformer.judge.summary import Summary

ENTRY = """
[[deviation]]
case = "layer_norm/large_mean"
port = "mine"
dtype = "float16"
reason = "computed in one pass"
link = "https://example.org/1"
"""
CASES = suite()


def row(case: str = "layer_norm/large_mean", status: str = "differs", **changes: object) -> Result:
    result = Result(case, case.partition("/")[0], "mine", "float16", "cpu", "eager", status, "error 1, allowed 0.1", error=1.0)
    return dataclasses.replace(result, **changes)


def entries(tmp_path: Path, text: str) -> list[deviations.Deviation]:
    file = tmp_path / "deviations.toml"
    file.write_text(text)
    return deviations.read(file, CASES)


def statuses(results: list[Result]) -> list[str]:
    return [result.status for result in results]


@pytest.mark.parametrize("status", FAILURES)
def test_a_declared_failure_is_a_deviation_with_the_reason_the_link_and_what_was_seen(tmp_path: Path, status: str) -> None:
    text = ENTRY if status == "differs" else f'{ENTRY}status = "{status}"\n'
    results = deviations.apply([row(status=status), row("layer_norm/plain", "pass")], entries(tmp_path, text))
    assert statuses(results) == ["deviation", "pass"]
    assert results[0].message == "computed in one pass (https://example.org/1): error 1, allowed 0.1"
    assert results[0].error == 1.0
    summary = Summary(results)
    assert summary.conforms
    assert summary.compared == 2
    assert (len(summary.failed), len(summary.accepted), len(summary.left)) == (0, 1, 0)
    assert summary.verdict == "conforms except 1 expected to fail"


@pytest.mark.parametrize("accepted", FAILURES)
def test_an_entry_accepts_one_kind_of_failure_and_no_other(tmp_path: Path, accepted: str) -> None:
    everything = ENTRY.replace("layer_norm/large_mean", "*").replace('dtype = "float16"\n', "")
    found = entries(tmp_path, everything if accepted == "differs" else f'{everything}status = "{accepted}"\n')
    results = deviations.apply([row(status=status) for status in FAILURES], found)
    assert statuses(results) == ["deviation" if status == accepted else status for status in FAILURES]
    assert not Summary(results).conforms


@pytest.mark.parametrize(("changes"), [{"port": "other"}, {"dtype": "float32"}, {"case": "layer_norm/plain"}])
def test_a_failure_that_no_entry_covers_stays_one(tmp_path: Path, changes: dict[str, str]) -> None:
    assert statuses(deviations.apply([row(**changes)], entries(tmp_path, ENTRY))) == ["differs"]


def test_a_pattern_covers_every_case_and_dtype_and_what_is_declared_throughout_conforms_in_nothing(tmp_path: Path) -> None:
    found = entries(tmp_path, ENTRY.replace("large_mean", "*").replace('dtype = "float16"\n', ""))
    results = [row(case.id, dtype=dtype) for case in CASES if case.component == "layer_norm" for dtype in case.dtypes]
    assert len(results) > 20
    assert set(statuses(deviations.apply(results, found))) == {"deviation"}
    summary = Summary(deviations.apply([row(), row(dtype="float32")], entries(tmp_path, ENTRY.replace('dtype = "float16"\n', ""))))
    assert summary.shortage and not summary.conforms


def test_an_entry_is_stale_where_none_of_its_cases_fails_and_none_was_left_out(tmp_path: Path) -> None:
    results = deviations.apply([row(status="pass")], entries(tmp_path, ENTRY))
    assert statuses(results) == ["pass", "stale"]
    assert "remove the entry (computed in one pass, https://example.org/1)" in results[1].message
    assert (results[1].case, results[1].port) == ("layer_norm/large_mean", "mine")
    summary = Summary(results)
    assert not summary.conforms
    assert (summary.compared, len(summary.failed)) == (1, 1)
    assert summary.columns == [("mine", "eager", "cpu")]
    found = entries(tmp_path, ENTRY.replace('dtype = "float16"\n', ""))
    results = [row(dtype=dtype, status="pass") for dtype in ("float64", "float32", "bfloat16", "float16")]
    assert "stale" not in statuses(deviations.apply(results[:3], found))
    assert "stale" in statuses(deviations.apply(results, found))
    assert "stale" not in statuses(deviations.apply([*results[:3], row()], found))
    assert "stale" in statuses(deviations.apply([*results[:3], row(status="not covered")], found))
    assert "stale" not in statuses(deviations.apply([*results[:3], row(status="skipped")], found))


@pytest.mark.parametrize("status", ["skipped", "not covered", "unsupported", "not comparable", "empty"])
def test_an_entry_whose_case_was_not_compared_is_not_stale(tmp_path: Path, status: str) -> None:
    assert statuses(deviations.apply([row(status=status)], entries(tmp_path, ENTRY))) == [status]


def test_everything_that_is_wrong_with_a_file_is_listed_with_the_nearest_name(tmp_path: Path) -> None:
    text = """
note = 1
[[deviation]]
case = "layer_norm/large_meen"
port = "mine"
dtype = "float61"
status = "crashes"
reason = " "
[[deviation]]
case = "positional_encoding/*"
port = 3
cause = "x"
reason = "y"
link = "z"
"""
    with pytest.raises(ValueError) as error:
        entries(tmp_path, text)
    lines = str(error.value).splitlines()
    assert "deviations.toml" in lines[0]
    wanted = [
        "'note'",
        "entry 1: reason … ' '",
        "entry 1: link … nothing",
        "entry 1: case 'layer_norm/large_meen' … nearest: layer_norm/large_mean",
        "entry 1: dtype 'float61' … nearest: float64",
        "entry 1: status 'crashes' … nearest: crash",
        "entry 2: field 'cause' … nearest: case",
        "entry 2: port … 3",
    ]
    assert each_mentions(lines[1:], wanted)


NO_ENTRIES = {"[[deviation": "must be a TOML file", "[deviation]\ncase = 'x'": "headed [[deviation]]"}


@pytest.mark.parametrize("text", NO_ENTRIES)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError) as error:
        entries(tmp_path, text)
    assert mentions(str(error.value), NO_ENTRIES[text])


def test_too_few_comparisons_do_not_conform() -> None:
    results = [row(status="pass")] * 3 + [row(status="not covered")]
    assert Summary(results, min_cases=3).conforms
    summary = Summary(results, min_cases=4)
    assert "4" in summary.shortage and not summary.conforms


def test_what_was_not_shown_or_not_comparable_is_said_and_fails_unless_it_is_allowed() -> None:
    given = [row(status="pass"), *[row("layer_norm/plain", "not given")] * 35]
    assert mentions(Summary(given).verdict, "35 of 36") and not Summary(given).conforms
    assert mentions(Summary([row(), *given[1:]]).verdict, "differs … 35 of 36")
    allowed = Summary(given, incomplete=True)
    assert (allowed.verdict, allowed.conforms) == ("conforms except 35 not given", True)
    hidden = [row(status="pass"), row("layer_norm/plain", "not shown")]
    assert "1 case" in Summary(hidden).verdict and not Summary(hidden).conforms
    assert Summary(hidden, incomplete=True).verdict == "conforms except 1 not shown"
    assert not Summary(given[1:], incomplete=True).conforms
    some = [row(status="pass"), row(status="not comparable"), row(status="pass", incomparable={"a": "it is wide", "b": "it is wide"})]
    assert mentions(Summary(some).verdict, "conforms … 1 not comparable, 2 single")
    assert Summary(some).to_dict()["incomparable_parts"] == 2
    assert Summary([row(status="pass"), row(status="empty")]).verdict == "all conform"
    cell = Summary(some).cell(("layer_norm", "float16"), ("mine", "eager", "cpu"))
    assert (cell.passed, cell.left, cell.other) == (2, 1, "not comparable")


@pytest.mark.parametrize("status", ["not comparable", "empty"])
def test_a_component_of_which_nothing_is_comparable_does_not_conform(status: str) -> None:
    results = [row("softmax/plain", "pass"), row(status=status), row("dropout/mixed", "not covered")]
    assert "layer_norm" in Summary(results).verdict and not Summary(results).conforms
    assert Summary([*results, row(status="pass", dtype="float64")]).conforms
    assert Summary(results, incomplete=True).conforms
    assert Summary([row(status=status)], incomplete=True).verdict == "nothing was compared"
