"""JUnit XML, as CI servers read it."""

import dataclasses
from xml.etree import ElementTree

from messages import mentions

from rosettaformer.judge.case import SUITE_RELEASE
from rosettaformer.judge.report import junit
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import undefined
from rosettaformer.judge.summary import Summary


def row(status: str, message: str = "", case: str = "softmax/plain", port: str = "mine") -> Result:
    return Result(case, case.partition("/")[0], port, "float32", "cpu", "eager", status, message)


def seconds(element: ElementTree.Element) -> float:
    return float(element.attrib["time"])


def document(*results: Result, **options: int) -> ElementTree.Element:
    text = junit.render(Summary(results, **options))
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
    return ElementTree.fromstring(text.encode())


def counts(element: ElementTree.Element) -> tuple[int, ...]:
    return tuple(int(element.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))


def test_a_suite_a_port_and_a_case_a_result_counted_by_kind() -> None:
    statuses = [
        "pass", "differs", "stale", "error", "crash", "hang", "not comparable", "empty", "not shown", "not given",
        "unsupported", "not covered", "missing", "skipped", "deviation",
    ]  # fmt: skip
    root = document(*(row(status, f"about {status}") for status in statuses), row("pass", port="command:./other"))
    run, mine, other = root
    assert [suite.attrib["name"] for suite in root] == ["rosettaformer", "mine", "command:./other"]
    assert (counts(run), counts(mine), counts(other)) == ((1, 1, 0, 0), (15, 2, 3, 9), (1, 0, 0, 0))
    assert counts(root) == (17, 3, 3, 9)
    cases = mine.findall("testcase")
    assert {(case.attrib["classname"], case.attrib["name"]) for case in cases} == {("softmax", "plain[float32-eager-cpu]")}
    kinds = [child.tag for case in cases for child in case]
    assert kinds == ["failure", "failure", "error", "error", "error", *["skipped"] * 9]
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "differs: about differs (mine softmax/plain float32 eager cpu)"


def test_properties_name_the_release_and_what_is_wrong_with_a_run_is_an_entry() -> None:
    for suite in document(row("pass")):
        properties = {node.attrib["name"]: node.attrib["value"] for node in suite.iter("property")}
        assert properties["suite release"] == str(SUITE_RELEASE)
    run = document(row("pass"), min_cases=2)[0]
    assert counts(run) == (1, 1, 0, 0)
    assert "2" in next(run.iter("failure")).attrib["message"]
    suite = document(Result("", "", "mine", "", "", "", "error", "SyntaxError: no"))[1]
    assert counts(suite) == (1, 0, 1, 0)


def test_what_xml_cannot_hold_is_written_as_its_code() -> None:
    message = "\x00\x1b[31mred\x1b[0m \ud800 <&\"'> ]]> \uffff ü \U0001f600\nnext"
    failure = next(document(row("differs", message)).iter("failure"))
    assert failure.text is not None
    for text in ("\\x00\\x1b[31mred", "\\xd800", "<&\"'> ]]>", "\\xffff", "ü \U0001f600\nnext"):
        assert mentions(failure.text, text)


def test_every_case_has_its_time_and_what_was_not_compared_for_one_reason_is_one_entry() -> None:
    rows = [dataclasses.replace(row("pass"), seconds=1.5), dataclasses.replace(row("differs"), seconds=0.0625), row("not covered")]
    root = document(*rows)
    assert [seconds(case) for case in root[1].iter("testcase")] == [1.5, 0.062, 0]
    assert seconds(root) == seconds(root[1]) == 1.562
    names = ("softmax", "logits")
    left = [row("not covered", undefined(name), f"{name}/{case}") for name in names for case in range(500)]
    suite = document(row("pass", case="layer_norm/plain"), *left, row("skipped", "no cuda device", "logits/1"))[1]
    assert counts(suite) == (4, 0, 0, 3)
    names = [case.attrib["name"] for case in suite.findall("testcase")]
    assert names[1] == f"not covered: {undefined('softmax')}"
    assert next(suite.iter("skipped")).attrib["message"] == f"not covered: {undefined('softmax')} (mine, 500 cases)"
