"""Compares two reports: rows that got worse or better, appeared or vanished."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...common.outputs import declared, versioned
from ...common.reading import read_json
from ...judge.compare import HIGHEST

WORSE = 4.0  # a row is worse if its verdict is, or if its error grew by more than this many units and more than this factor
ORDER = ("equal", "not comparable", "convention", "rounding", "differs")


def read(path: Path) -> dict[str, Any]:
    """Reads a report. Raises ValueError on any other file and on another version."""
    found = read_json(path)
    if not isinstance(found, dict) or not {"version", "outputs", "layers", "variables"} <= found.keys():
        raise ValueError(f"{path} is not a report of `rosettaformer compare --json`")
    if found["version"] != (version := declared()["compare"]["version"]):
        raise ValueError(f"{path} must have version {version}; got {found['version']!r}. Run `rosettaformer compare --json` again")
    return found


def versus(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows that changed from one report to another."""
    old, new = dict(_rows(before)), dict(_rows(after))
    found: dict[str, Any] = {"worse": [], "better": [], "appeared": [*new.keys() - old.keys()], "vanished": [*old.keys() - new.keys()]}
    for name in old:
        if name in new:
            change = _change(old[name], new[name])
            if change:
                found[change].append({"name": name, "before": old[name], "after": new[name]})
    for several in ("appeared", "vanished"):
        found[several].sort()
    return versioned("compare", found)


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        for number, row in enumerate(report["outputs"]):
            yield f"output {number + 1}", _cell(row)
        for row in report["layers"]:
            name = f"layer {row['left']} #{row['call'] + 1} = {row['right']}"
            yield f"{name}, as run", _cell(row["free"])
            for which, one in zip(("left", "right"), row["forced"], strict=False):
                yield f"{name}, {which}'s input", _cell(one)
        for row in report.get("gradients", ()):
            yield f"gradient {row['left']} = {row['right']}", _cell(row)
        for optimizer, step in report.get("steps", {}).items():
            for row in step["rows"]:
                yield f"{optimizer} {row['left']} = {row['right']}", _cell(row)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the report is incomplete: {error} is missing. Run `rosettaformer compare --json` again") from None


def _cell(row: Mapping[str, Any]) -> dict[str, Any]:
    units = row["units"]
    return {"verdict": row["verdict"], "units": HIGHEST if units is None else float(units)}


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    ranks = [ORDER.index(row["verdict"]) if row["verdict"] in ORDER else len(ORDER) for row in (old, new)]
    if (ranks[0] == len(ORDER) - 1) != (ranks[1] == len(ORDER) - 1):
        return "worse" if ranks[1] > ranks[0] else "better"
    if "not comparable" in (old["verdict"], new["verdict"]):
        return ""
    for word, one, other in (("worse", old["units"], new["units"]), ("better", new["units"], old["units"])):
        if other - one > WORSE and other > WORSE * one:
            return word
    return ""
