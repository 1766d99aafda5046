"""Groups what reports say once instead of many times: components that a port does not cover, reasons, and equal messages."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..result import Result
from ..status import ON_ONE_DEVICE, Status, undefined, without
from ..summary import Summary

SHORT = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


# how a reason begins -> what to write in the port
REMEDIES = {
    re.escape(undefined("")) + r"\d+ components": "define those that the port has",
    re.escape(undefined("")) + r"(\w+)": r"define \1",
    re.escape(without("")) + r"(\w+)": r'add "\1" to `dtypes`',
    r"the port declares (\w+)": r"remove the declaration of `\1`, if the port can do it",
    r"the function that load\(folder\) returns has no attribute (\w+)": r"give it the attribute `\1`",
    r"the function that load\(folder\) returns does not take (\w+)": r"let the function take \1",
    r"the port pins suite release (\d+)": "pin a later release, or remove `suite`",
    re.escape(ON_ONE_DEVICE): "define `on_mesh`, or let `load` take a mesh",
}


@dataclass(frozen=True)
class Reason:
    """Why n results of a port were not compared."""

    port: str
    status: Status
    text: str
    count: int

    @property
    def remedy(self) -> str:
        """What to write in the port so that they are compared; empty if it cannot give them."""
        if self.status != Status.NOT_COVERED:
            return ""
        found = ((re.match(pattern, self.text), remedy) for pattern, remedy in REMEDIES.items())
        return next((match.expand(remedy) for match, remedy in found if match), "")


def uncovered(summary: Summary) -> dict[str, list[str]]:
    """Returns, by port, the components of which it covers nothing."""
    covered = {(result.port, result.component) for result in summary.results if result.status != Status.NOT_COVERED}
    found: dict[str, list[str]] = {}
    for port, component in dict.fromkeys((result.port, result.component) for result in summary.results if result.component):
        if (port, component) not in covered:
            found.setdefault(port, []).append(component)
    return found


def shown_rows(summary: Summary) -> list[tuple[str, str]]:
    """Returns the rows of a matrix, component and dtype, of which some port covers something."""
    covered = {(result.component, result.dtype) for result in summary.results if result.status != Status.NOT_COVERED}
    return [row for row in summary.rows if row in covered]


def reasons(summary: Summary) -> list[Reason]:
    """Returns why results were not compared; for each port, the components that it does not define make one reason."""
    missing: dict[str, dict[str, None]] = {}
    for result in summary.left:
        if result.message == undefined(result.component):
            missing.setdefault(result.port, {})[result.component] = None
    counts: Counter[tuple[str, Status, str]] = Counter()
    for result in summary.left:
        names = missing.get(result.port, {})
        together = len(names) > 1 and result.component in names
        text = undefined(f"{len(names)} components: {', '.join(names)}") if together else result.message
        counts[result.port, result.status, text] += 1
    return [Reason(*key, count) for key, count in counts.items()]


def alike(results: Iterable[Result]) -> list[list[Result]]:
    """Returns the results in groups of equal port, status and message, in the order of their first results; one without a message is its
    own group.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for number, result in enumerate(results):
        groups.setdefault((result.port, result.status, result.message or number), []).append(result)
    return list(groups.values())


def where(result: Result, port: bool = True) -> str:
    """Returns which case a result is about, and how it was run."""
    return " ".join(filter(None, (result.port if port else "", result.case, result.dtype, result.mode, result.place)))
