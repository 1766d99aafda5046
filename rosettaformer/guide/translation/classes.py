"""Classifies a row in one direction: what changes for someone who knows the first framework."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from .measurement import Values
from .snippets import alike
from .table import FRAMEWORKS, Row

# class -> (title, explanation), most serious last
CLASSES = {
    "same": ("Same", "same name and same behavior"),
    "name": ("Different name", "same behavior under another name"),
    "default": ("Different default", "pass the argument explicitly, or the numbers differ"),
    "meaning": ("Same name, different behavior", "the code runs but gives wrong numbers"),
    "absent": ("Absent", "one or both frameworks have no counterpart; the code shows what to write"),
}


def relation(row: Row, one: str, other: str, values: Values) -> str:
    """Returns the class of the row in a direction, from names and measurements."""
    if not (row.cells[one].names and row.cells[other].names):
        return "absent"
    measured = _measured(row, values)
    if one in measured and other in measured and not alike(measured[one], measured[other]):
        return row.kind
    first, second = ({name.rpartition(".")[2].rstrip("()") for name in row.cells[framework].names} for framework in (one, other))
    return "same" if first & second else "name"


def groups(row: Row, values: Values) -> list[list[str]]:
    """Groups the frameworks by equal measurements."""
    found: list[list[str]] = []
    measured = _measured(row, values)
    for framework, value in measured.items():
        group = next((group for group in found if alike(measured[group[0]], value)), None)
        found.append([framework]) if group is None else group.append(framework)
    return found


def check(rows: Sequence[Row], values: Values) -> list[str]:
    """Returns the contradictions: code that disagrees, wrong classes, wrong groups."""
    return [f"{row.id}: {problem}" for row in rows for problem in (*_codes(row, values), *_declared(row, values))]


def _codes(row: Row, values: Values) -> Iterator[str]:
    codes = {framework: values[row.id][framework]["code"] for framework in FRAMEWORKS if "code" in values[row.id].get(framework, {})}
    yield from (f"the last line of {framework}'s code must have a value" for framework, value in codes.items() if value is None)
    if not row.apart:
        for (one, first), (other, second) in combinations(codes.items(), 2):
            if not alike(first, second, 1e-6):
                yield f"the codes of {one} and {other} must agree; got {first} and {second}"


def _declared(row: Row, values: Values) -> Iterator[str]:
    if not (measured := _measured(row, values)):
        return
    found = groups(row, values)
    if row.kind and len(measured) < 2:
        yield f"a row of kind {row.kind} must be measured in at least two frameworks; only {', '.join(measured)} is"
    elif row.kind and len(found) < 2 and (row.kind == "meaning" or row.groups):
        yield f"it is declared to have another {row.kind}, but all measure {next(iter(measured.values()))}"
    elif not row.kind and len(found) > 1:
        yield f"it declares no kind, but the measurements differ: {measured}"
    if row.groups and {frozenset(part.split()) for part in row.groups.split("|")} != {frozenset(group) for group in found}:
        yield f"the groups must be {' | '.join(' '.join(group) for group in found)}; got {row.groups}: {measured}"


def _measured(row: Row, values: Values) -> Mapping[str, Any]:
    found = values.get(row.id, {})
    return {framework: found[framework]["measure"] for framework in FRAMEWORKS if "measure" in found.get(framework, {})}
