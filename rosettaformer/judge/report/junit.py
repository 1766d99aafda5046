"""Renders the results as JUnit XML for CI servers: one test suite per port, one test case per
result.

Results of a component that were skipped for the same reason make one skipped test case.
"""

import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from ..case import SUITE_RELEASE
from ..runner import Result
from ..status import Status
from ..summary import Summary
from . import grouping, words

KINDS = {Status.PASS: "", Status.DIFFERS: "failure", Status.STALE: "failure", Status.ERROR: "error", Status.CRASH: "error",
         Status.HANG: "error", Status.NOT_STARTED: "error"}  # fmt: skip  # else skipped
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0, not even escaped


def render(summary: Summary) -> str:
    """Renders the document, with a suite rosettaformer that fails if too little was compared."""
    root = Element("testsuites", name="rosettaformer")
    run = _suite(root, "rosettaformer", summary)
    _case(run, "rosettaformer", words.ENOUGH, "failure" if summary.shortage else "", "differs", summary.shortage)
    for port in dict.fromkeys(result.port for result in summary.results):
        suite = _suite(root, port, summary)
        for results in _entries(summary, port):
            _result(suite, results)
    for suite in root:
        _count(suite, [suite])
    _count(root, list(root))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, name: str, summary: Summary) -> Element:
    suite = SubElement(root, "testsuite", name=_printable(name))
    properties = SubElement(suite, "properties")
    values = {
        "suite release": SUITE_RELEASE,
        "rosettaformer": version("rosettaformer"),
        "python": platform.python_version(),
    }
    for key, value in values.items():
        SubElement(properties, "property", name=key, value=str(value))
    return suite


def _entries(summary: Summary, port: str) -> Iterable[list[Result]]:
    """Returns a port's results as entries; equally skipped results of a component share one."""
    left = {id(result) for result in summary.left}
    entries: dict[object, list[Result]] = {}
    for result in summary.results:
        if result.port == port:
            key = (result.component, result.status, result.message) if id(result) in left else id(result)
            entries.setdefault(key, []).append(result)
    return entries.values()


def _result(suite: Element, results: Sequence[Result]) -> None:
    result = results[0]
    how = "-".join(filter(None, (result.dtype, result.mode, result.place)))
    name = (result.case.removeprefix(f"{result.component}/") or "port") + (f"[{how}]" if how else "")
    kind = KINDS.get(result.status, "skipped")
    where = grouping.where(result)
    if len(results) > 1:
        name, where = f"{result.status}: {result.message}", f"{result.port}, {len(results)} cases"
    message = f"{result.status}: {result.message} ({where})"
    _case(suite, result.component or "rosettaformer", name, kind, result.status, message, result.seconds)


def _case(suite: Element, component: str, name: str, kind: str, status: str, message: str, seconds: float = 0.0) -> None:
    case = SubElement(suite, "testcase", classname=_printable(component), name=_printable(name), time=f"{seconds:.3f}")
    if kind:
        SubElement(case, kind, message=_printable(message), type=status).text = _printable(message)


def _count(element: Element, suites: Sequence[Element]) -> None:
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    element.set("time", f"{sum(float(case.attrib['time']) for case in cases):.3f}")
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(kind) is not None for case in cases)))


def _printable(text: str) -> str:
    """Returns the text with every character that XML does not allow replaced with its code."""
    return FORBIDDEN.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
