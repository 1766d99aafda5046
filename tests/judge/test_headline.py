"""The last line of a report, and which skipped comparisons need only code in the port."""

import pytest
from expectations import suite

from rosettaformer.commands.list import _components
from rosettaformer.comparison.report import comparison_text
from rosettaformer.conformance.ports.port import ON_ONE_DEVICE, _filled, undefined, without
from rosettaformer.conformance.report.grouping import Reason, reasons
from rosettaformer.conformance.report.summary import Summary
from rosettaformer.conformance.result import Result
from rosettaformer.conformance.status import Status


def _row(status: Status, message: str = "", component: str = "softmax", case: str = "plain") -> Result:
    return Result(f"{component}/{case}", component, "a", "float32", "cpu", "eager", status, message)


PASS, DIFFERS, LEFT = (_row(status) for status in (Status.PASS, Status.DIFFERS, Status.NOT_COVERED))


@pytest.mark.parametrize(
    ("results", "first", "numbers"),
    [
        ([PASS, PASS], "PASSED", ("2",)),
        ([PASS, LEFT], "PASSED", ("1", "1")),
        ([PASS, DIFFERS, LEFT], "FAILED", ("1", "2", "1")),
        ([LEFT, LEFT], "FAILED", ("nothing was compared", "2")),
    ],
)
def test_it_says_the_verdict_first_and_counts(results: list[Result], first: str, numbers: tuple[str, ...]) -> None:
    words = Summary(results).headline
    assert words.startswith(f"{first}: ")
    assert all(number in words for number in numbers)
    assert Summary(results).conforms == (first == "PASSED")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (undefined("softmax"), "softmax"),
        (undefined("3 components: softmax, dropout, encoder"), "define"),
        (without("bfloat16"), "bfloat16"),
        ("the port declares rows = 1", "rows"),
        ("what load(folder) returns has no step", "step"),
        (ON_ONE_DEVICE, "on_mesh"),
        ("the port fixes epsilon=1e-06", ""),
        ("a mask of another kind", ""),
    ],
)
def test_what_code_in_the_port_would_get_compared_is_told_from_what_cannot_be_had(text: str, word: str) -> None:
    remedy = Reason("a", Status.NOT_COVERED, text, 3).remedy
    assert bool(remedy) == bool(word)
    assert word in remedy
    assert not Reason("a", Status.UNSUPPORTED, text, 3).remedy


def test_reasons_of_several_components_have_one_remedy() -> None:
    rows = [_row(Status.NOT_COVERED, undefined(name), name) for name in ("softmax", "dropout")]
    (reason,) = reasons(Summary(rows))
    assert reason.remedy


def test_a_comparison_of_nothing_is_not_equal() -> None:
    report = {"outputs": [{"verdict": "not comparable"}], "hidden": [], "first": ""}
    assert comparison_text.verdict(report) == comparison_text.NOTHING
    assert comparison_text.verdict(report | {"outputs": [{"verdict": "equal"}]}) == "equal"
    assert comparison_text.verdict(report | {"hidden": [{}]}) == "differs"


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
