"""The results table on a terminal, the summary of a run, and which skipped comparisons only need code in the port."""

import dataclasses
import io
import math
import re
from collections import Counter
from typing import Any

import pytest
from expectations import all_by_id, suite
from messages import mentions
from rich.console import Console

from rosettaformer.commands.list import _components
from rosettaformer.commands.progress import Checking
from rosettaformer.comparison.output import terminal
from rosettaformer.judge.ports.port import _filled
from rosettaformer.judge.report import matrix
from rosettaformer.judge.report.grouping import Reason, reasons
from rosettaformer.judge.report.words import headline
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import ON_ONE_DEVICE, Status, undefined, without
from rosettaformer.judge.suite import expression
from rosettaformer.judge.summary import Summary


def row(case: str, status: str = "pass", dtype: str = "float32", port: str = "mine.py", **changes: Any) -> Result:
    numbers = {"ratio": 0.94, "noise": 1e-7} if status == "pass" else {}
    return Result(case, case.partition("/")[0], port, dtype, "cpu", "eager", status, **numbers | changes)


def rendered(*rows: Result, seconds: float | None = None) -> str:
    stream = io.StringIO()
    matrix.render(Console(file=stream, width=160), Summary(rows), seconds)
    return stream.getvalue()


def test_what_is_not_covered_is_one_line_of_its_port_and_reason() -> None:
    passes = [row(f"softmax/{number}") for number in range(11)]
    text = rendered(*passes, *(row(f"softmax/other{number}", "not covered", message="no masks") for number in range(3)))
    assert "pass 0.94 (11/14)" in text
    assert "(n/m): n of m" in text
    assert mentions(text, "not covered (3) … no masks")
    text = rendered(*passes)
    assert "pass 0.94\n" in text.replace(" \n", "\n")
    assert "of 14" not in text
    names = [f"component{number}" for number in range(23)]
    left = [row(f"{name}/{case}", "not covered", message=undefined(name)) for name in names for case in range(4)]
    lines = rendered(row("softmax/plain"), *left).splitlines()
    said = f"(92) … 23 components: {', '.join(names)}"
    (line,) = [line for line in lines if "component1" in line]
    assert mentions(line, said)
    text = rendered(row("softmax/plain"), *left, row("component1/0", port="torch"))
    assert sum("component1 " in line for line in text.splitlines()) == 1  # the other port covers it
    others = [row(f"{name}/0", "not covered", message=undefined(name)) for name in ("states", "pool")]
    text = rendered(*others, row("transformer/0", "not covered", message="the port fixes heads=3; the checkpoint has heads=4"))
    assert mentions(text, "(2) … 2 components: states … pool")
    assert mentions(text, "not covered (1) … the port fixes heads=3; the checkpoint has heads=4")


def test_numbers_have_a_legend_and_stand_only_where_something_was_compared() -> None:
    text = rendered(row("softmax/plain"), row("logits/plain", "crash"), row("dropout/none", ratio=math.nan, noise=math.nan))
    assert "nan" not in text.lower()
    assert "inf" not in rendered(row("softmax/plain", "differs", ratio=math.inf)).lower()
    assert mentions(rendered(row("softmax/plain")), "1.00 … NumPy … 4")


def test_twenty_equal_messages_are_one_and_others_are_not() -> None:
    dtypes = ("float64", "float32")
    equal = [row(f"softmax/{number}", "error", dtype, message="TypeError: no") for number in range(10) for dtype in dtypes]
    others = row("softmax/other", "error", message="ValueError: no"), row("softmax/plain", "differs", port="torch", message="x")
    text = rendered(*equal, *others)
    where = "softmax/0 float64 eager cpu, softmax/0 float32 eager cpu, softmax/1 float64 eager cpu, ..."
    said = ["20 … mine.py … TypeError: no", where, "mine.py softmax/other float32 eager cpu … ValueError: no", "torch softmax/plain … x"]
    assert mentions(text, " … ".join(said))
    assert text.count("TypeError") == 1


def test_after_a_failure_it_says_what_is_next_and_how_long_it_took() -> None:
    lines = rendered(row("softmax/plain", "differs"), row("softmax/plain", "crash", port="command:./a b"), seconds=125.2).splitlines()
    assert lines[-2:] == ["next: rosettaformer diagnose mine.py", "next: rosettaformer diagnose --command './a b'"]
    assert lines[0].endswith(" in 2 min 5 s")
    for rows in ([row("softmax/plain")], [Result("", "", "mine.py", "", "", "", "error", "SyntaxError")]):
        assert "next:" not in rendered(*rows)
    others = [row("transformer/short", "error"), row("states/short", "not covered"), row("transformer/batch", "skipped")]
    assert "next:" not in rendered(*others)  # it would only repeat the same
    assert "next: rosettaformer diagnose mine.py" in rendered(*others, row("transformer/far", "not comparable"))
    assert "next:" in rendered(
        row("softmax/plain", "crash"), row("logits/plain", "skipped", message="the port's process had ended 4 times")
    )
    folder = dataclasses.replace(row("softmax/plain", "differs", port="outputs"), mode="")
    assert "next:" not in rendered(folder)  # outputs that were made elsewhere


def test_why_a_port_did_not_start_is_left_to_the_command() -> None:
    text = rendered(Result("", "", "mine.py", "", "", "", "not started", "SyntaxError"), row("softmax/plain", port="torch"))
    assert "SyntaxError" not in text and "mine.py did not start" in text


@pytest.mark.parametrize("status", ["error", "crash", "hang"])
def test_a_port_without_a_wrong_answer_fails_and_does_not_differ(status: str) -> None:
    summary = Summary([row("softmax/plain", status), row("softmax/other")], min_cases=3)
    assert (bool(summary.shortage), summary.conforms) == (True, False)
    assert Summary([row("softmax/plain", status), row("softmax/other", "differs")]).verdict == "differs"
    first = rendered(row("softmax/plain", status)).splitlines()[0]
    assert first.startswith("FAILED: 1 of 1 ") and "differ" not in first
    assert " differ " in rendered(row("softmax/plain", status), row("softmax/other", "differs")).splitlines()[0]
    assert Summary([row("softmax/plain"), row("softmax/other", "stale")]).verdict == "differs"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599.9, "60 min 0 s")]
)
def test_durations_are_in_words(seconds: float, words: str) -> None:
    assert matrix.duration(seconds) == words


def test_what_takes_long_is_said_before_and_what_happens_once_is_not_expected_of_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Checking(("torch", "jax", "broken.py"), 100, Console(file=stream, width=100)) as checking:
        checking.begin("torch", Counter({"eager": 40}))
        checking.begin("jax", Counter({"compiled": 40}))
        checking.answered(Result("", "", "broken.py", "", "", "", "error"))
        for _ in range(20):
            now[0] += 1
            checking.answered(row("softmax/plain", seconds=0.5))
        checking.answered(row("softmax/plain", "not covered"))
    lines = "torch, jax, broken.py … 300", "torch … 40", "jax … 40 … compiled", "16 of 80 cases … 16 s … 1 min 4 s"
    assert all(map(mentions, stream.getvalue().splitlines(), lines)) and stream.getvalue().count("\n") == len(lines)
    # The first case imports the framework, so its 16 s predict nothing about the others
    stream, now = io.StringIO(), [0.0]
    with Checking(("keras.py",), 52, Console(file=stream, width=100)) as checking:
        now[0] = 16
        checking.answered(row("softmax/plain", seconds=16.0))
        for _ in range(31):
            now[0] += 0.5
            checking.answered(row("softmax/plain", seconds=0.5))
    assert stream.getvalue().splitlines()[1:] == [
        "starting keras.py: 1 of 52 cases after 16 s",
        "starting keras.py: 32 of 52 cases after 32 s, about 10 s left",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("layer_norm", {"layer_norm/plain-float32", "layer_norm/plain-float16"}),
        ("layer_norm and not float16", {"layer_norm/plain-float32"}),
        ("NOT (softmax or float16)".lower(), {"layer_norm/plain-float32"}),
        ("not not softmax or layer_norm and float16", {"softmax/plain-float32", "layer_norm/plain-float16"}),
        ("SOFTMAX", {"softmax/plain-float32"}),
        ("(((plain-float16)))", {"layer_norm/plain-float16"}),
    ],
)
def test_expressions_choose_as_in_pytest(text: str, wanted: set[str]) -> None:
    names = ["layer_norm/plain-float32", "layer_norm/plain-float16", "softmax/plain-float32"]
    assert set(expression.matching(names, str, text)) == wanted


@pytest.mark.parametrize("text", ["", "and", "a and", "a b", "(a", "a)", "()", "not", "a or or b", "a (b)", "(" * 5000, "not " * 5000])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="parentheses"):
        expression.compiled(text)


def test_deep_and_long_expressions_are_no_trouble_and_cases_keep_their_dtypes() -> None:
    assert expression.compiled("(" * 5000 + "a" + ")" * 5000)("a")
    assert expression.compiled("not " * 5000 + "a")("a")
    cases = list(all_by_id().values())
    (case,) = expression.choose(cases, "layer_norm/plain and not (float16 or float64)")
    assert (case.id, case.dtypes) == ("layer_norm/plain", ("float32",))
    with pytest.raises(ValueError, match=r"-k .*'large_meen'.*\(nearest: large_mean\)"):
        expression.choose(cases, "large_meen")


PASS, DIFFERS, LEFT, STALE = (row("softmax/plain", status) for status in ("pass", "differs", "not covered", "stale"))


@pytest.mark.parametrize(
    ("results", "first", "numbers"),
    [
        ([PASS, PASS], "PASSED", ["2"]),
        ([PASS, LEFT], "PASSED", ["1", "1"]),
        ([PASS, DIFFERS, LEFT], "FAILED", ["1", "2", "1"]),
        ([PASS, STALE], "FAILED", ["1"]),
        ([LEFT, LEFT], "FAILED", ["2"]),
    ],
)
def test_it_says_the_verdict_first_and_counts(results: list[Result], first: str, numbers: list[str]) -> None:
    words = headline(Summary(results))
    assert words.startswith(f"{first}: ")
    assert re.findall(r"\d+", words) == numbers
    assert Summary(results).conforms == (first == "PASSED")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (undefined("softmax"), "softmax"),
        (undefined("3 components: softmax, dropout, encoder"), "define"),
        (without("bfloat16"), "bfloat16"),
        ("the port declares rows = 1", "rows"),
        ("the function that load(folder) returns has no attribute step", "step"),
        ("the function that load(folder) returns does not take mask_bt, which padded prompts need", "mask_bt"),
        (ON_ONE_DEVICE, "on_mesh"),
        ("the port fixes epsilon=1e-06", ""),
        ("a mask of another kind", ""),
    ],
)
def test_what_code_in_the_port_would_get_compared_has_a_remedy(text: str, word: str) -> None:
    remedy = Reason("a", Status.NOT_COVERED, text, 3).remedy
    assert bool(remedy) == bool(word)
    assert word in remedy
    assert not Reason("a", Status.UNSUPPORTED, text, 3).remedy


def test_reasons_of_several_components_have_one_remedy() -> None:
    names = ("softmax", "dropout")
    rows = [row(f"{name}/plain", Status.NOT_COVERED, message=undefined(name)) for name in names]
    (reason,) = reasons(Summary(rows))
    assert reason.remedy


def test_a_comparison_of_nothing_is_not_equal() -> None:
    report = {"outputs": [{"verdict": "not comparable"}], "hidden": [], "first": ""}
    assert terminal.verdict(report) == terminal.NOTHING
    assert terminal.verdict(report | {"outputs": [{"verdict": "equal"}]}) == "equal"
    assert terminal.verdict(report | {"hidden": [{}]}) == "differs"


def test_a_search_is_given_every_field_of_its_strategy() -> None:
    case = next(case for case in suite() if case.component == "greedy_search")
    filled = _filled(case).inputs
    assert filled["strategy.temperature"] == 1.0
    assert filled["strategy.max_new_tokens"] == case.inputs["strategy.max_new_tokens"]


def test_the_list_says_what_is_a_tree_what_decays_and_the_dtype_of_ids() -> None:
    adam = "\n".join(_components("adam"))
    assert 'parameters["embedding"]["table"]' in adam
    assert "decay applies to embedding.table, hidden.kernel, query.kernel;" in adam
    assert "label_bt: int64" in "\n".join(_components("cross_entropy and not vjp"))
    assert "nested" in "\n".join(_components("clip_global_norm"))
