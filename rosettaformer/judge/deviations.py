"""Declared expected failures: a file of deviations, each with a reason."""

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_numpy.suggestions import nearest

from ..common.reading import read_toml
from .case import DTYPES, Case
from .result import Result
from .status import FAILURES, Status

FIELDS = {"case": True, "port": True, "reason": True, "link": True, "dtype": False, "status": False}  # name -> required
DEFAULT = Status.DIFFERS  # the failure that an entry without a status accepts
JUDGED = (Status.PASS, *FAILURES, Status.DEVIATION)
SETTLED = (*JUDGED, Status.NOT_COMPARABLE, Status.EMPTY, Status.NOT_SHOWN, Status.NOT_COVERED, Status.UNSUPPORTED)


@dataclass(frozen=True)
class Deviation:
    """One entry of the file. covers: the (case id, dtype) pairs. status: the accepted failure."""

    case: str
    port: str
    reason: str
    link: str
    status: Status
    covers: frozenset[tuple[str, str]]


def read(path: Path, cases: Iterable[Case]) -> list[Deviation]:
    """Reads the `[[deviation]]` tables of a TOML file.

    Each has case (an id or a glob pattern), port, reason, link, and optionally dtype and status,
    the failure that it accepts: differs (the default), error, crash or hang. cases: the cases that
    an entry may name. Raises ValueError with everything that is wrong with the file.
    """
    document = read_toml(path)
    known = {case.id: case.dtypes for case in cases}
    problems = [_unknown("", name, ["deviation"]) for name in document if name != "deviation"]
    entries = document.get("deviation", [])
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        problems.append("deviation must be an array of tables, each headed [[deviation]]")
        entries = []
    for number, entry in enumerate(entries, 1):
        problems += [f"entry {number}: {problem}" for problem in _problems(entry, known)]
    if problems:
        raise ValueError("\n  ".join([f"{path} has errors:", *problems]))
    return [_deviation(entry, known) for entry in entries]


def _problems(entry: Mapping[str, Any], known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name in entry:
        if name not in FIELDS:
            yield _unknown("field ", name, FIELDS)
    for name, required in FIELDS.items():
        value = entry.get(name)
        if (required or value is not None) and not (isinstance(value, str) and value.strip()):
            yield f"{name} must be a non-empty string; got {'nothing' if value is None else repr(value)}"
    case, dtype = str(entry.get("case", "*")), str(entry.get("dtype", DTYPES[0]))
    ids = fnmatch.filter(known, case)
    if case.strip() and not ids:
        yield _unknown("case ", case, known)
    if dtype.strip() and dtype not in DTYPES:
        yield _unknown("dtype ", dtype, DTYPES)
    elif ids and "dtype" in entry and not any(dtype in known[name] for name in ids):
        yield f"{case} does not run in {dtype}"
    if (status := str(entry.get("status", DEFAULT))).strip() and status not in FAILURES:
        yield _unknown("status ", status, FAILURES)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"{what}{name!r} is unknown{nearest(name, known)}"


def _deviation(entry: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Deviation:
    ids = fnmatch.filter(known, entry["case"])
    covers = frozenset((case, dtype) for case in ids for dtype in known[case] if dtype == entry.get("dtype", dtype))
    return Deviation(
        entry["case"], entry["port"], entry["reason"].strip(), entry["link"].strip(), Status(entry.get("status", DEFAULT)), covers
    )


def apply(results: Iterable[Result], deviations: Sequence[Deviation]) -> list[Result]:
    """Returns the results with deviations marked, and a "stale" result per unexpected pass."""
    results = [declare(result, deviations) for result in results]
    return [*results, *(_stale_row(deviation) for deviation in deviations if stale(deviation, results))]


def declare(result: Result, deviations: Iterable[Deviation]) -> Result:
    """Returns a declared failure as a deviation, with its reason and link; others unchanged."""
    for deviation in deviations if result.status in FAILURES else ():
        if _covers(deviation, result) and result.status == deviation.status:
            return dataclasses.replace(result, status=Status.DEVIATION, message=f"{deviation.reason} ({deviation.link}): {result.message}")
    return result


def stale(deviation: Deviation, results: Iterable[Result]) -> bool:
    """Whether every case and dtype of the entry ran on the port and passed.

    A run without some of them does not count, since those may be the failing ones.
    """
    own = [result for result in results if _covers(deviation, result) and result.status in SETTLED]
    judged = {result.status for result in own if result.status in JUDGED}
    return judged == {Status.PASS} and {(result.case, result.dtype) for result in own} == deviation.covers


def _covers(deviation: Deviation, result: Result) -> bool:
    return result.port == deviation.port and (result.case, result.dtype) in deviation.covers


def _stale_row(deviation: Deviation) -> Result:
    message = f"unexpected pass: no declared failure occurs; remove the entry ({deviation.reason}, {deviation.link})"
    return Result(deviation.case, "", deviation.port, "", "", "", Status.STALE, message)
