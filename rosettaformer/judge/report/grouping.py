"""Groups what reports print once: uncovered components, reasons, and equal messages."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..result import Result
from ..status import ON_ONE_DEVICE, Status, undefined, without
from ..summary import Summary

SHORT = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


# start of a reason -> what to write in the port
REMEDIES = {
    re.escape(undefined("")) + r"\d+ components": "define those that your model has",
    re.escape(undefined("")) + r"(\w+)": r"define \1",
    re.escape(without("")) + r"(\w+)": r'add "\1" to `dtypes`',
    r"the port declares (\w+)": r"remove the declaration of `\1` if the port supports it",
    r"the function that load\(folder\) returns has no attribute (\w+)": r"give the returned function an attribute `\1`",
    r"the function that load\(folder\) returns does not take (\w+).*": r"add the argument \1 to the function",
    r"the port pins suite release (\d+)": "pin a later release, or remove `suite`",
    re.escape(ON_ONE_DEVICE): "define `on_mesh`, or let `load` take a mesh",
}


@dataclass(frozen=True)
class Reason:
    """Why a number of results of a port were skipped."""

    port: str
    status: Status
    text: str
    count: int

    @property
    def remedy(self) -> str:
        """The code to write in the port so that they can be compared; empty if nothing helps."""
        if self.status != Status.NOT_COVERED:
            return ""
        found = ((re.match(pattern, self.text), remedy) for pattern, remedy in REMEDIES.items())
        return next((match.expand(remedy) for match, remedy in found if match), "")


def uncovered(summary: Summary) -> dict[str, list[str]]:
    """Returns, by port, the components that it does not cover at all."""
    covered = {(result.port, result.component) for result in summary.results if result.status != Status.NOT_COVERED}
    found: dict[str, list[str]] = {}
    for port, component in dict.fromkeys((result.port, result.component) for result in summary.results if result.component):
        if (port, component) not in covered:
            found.setdefault(port, []).append(component)
    return found


def shown_rows(summary: Summary) -> list[tuple[str, str]]:
    """Returns the rows of the results table (component and dtype) that some port covers."""
    covered = {(result.component, result.dtype) for result in summary.results if result.status != Status.NOT_COVERED}
    return [row for row in summary.rows if row in covered]


def reasons(summary: Summary) -> list[Reason]:
    """Returns the reasons for skipping; all components that a port lacks share one reason."""
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
    """Returns the results grouped by port, status and message, in the order of their first results.

    A result without a message is a group of its own.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for number, result in enumerate(results):
        groups.setdefault((result.port, result.status, result.message or number), []).append(result)
    return list(groups.values())


def where(result: Result, port: bool = True) -> str:
    """Returns the case of a result and how it was run."""
    return " ".join(filter(None, (result.port if port else "", result.case, result.dtype, result.mode, result.place)))
