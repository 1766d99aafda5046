"""Ids out of range: exported files should reject them or return NaN."""

import dataclasses
from typing import Any

import numpy as np

from .case import Case
from .compare import compare
from .expectation import lowered
from .expectation.expectation_store import Store
from .result import Expected, Result
from .status import Kind, Status
from .suite.artefact import ids_in, outside_id

PROMISES = ("refused", "nan")  # starts of manifest entries that rule out an ordinary output


def expected(case: Case, store: Store, precision: str = "") -> Expected:
    """Returns the reference's outputs for valid ids that the id may be read as, by name."""
    ids, size = case.inputs[case.outside], ids_in(case.config, case.outside)
    what = "segment" if case.outside == "segment_bs" else "id"
    found: Expected = {}
    for name, id_ in {f"the last {what}": size - 1, f"{what} 0": 0}.items():
        inputs = dict(case.inputs) | {case.outside: np.where((ids < 0) | (ids >= size), id_, ids)}
        inside = dataclasses.replace(case, inputs=inputs, outside="")
        own = store.expect(inside)
        found[name] = (lowered.expect(inside, own, precision) if precision else own)["output"]
    return found


def judge(row: dict[str, Any], case: Case, kind: str, answer: Any, readings: Expected, promised: str = "") -> Result:
    """Returns the result of a case with an id out of range.

    readings: see `expected`. promised: how the file's manifest says it handles the id.
    """
    if kind == Kind.ERROR:
        return Result(**row, status=Status.PASS, message=f"refused: {answer}")
    if kind != Kind.OUTPUTS:
        return Result(**row, status=Status(kind), message=str(answer))
    output = answer["output"]
    if not np.isfinite(output.astype(np.float64)).all():
        return Result(**row, status=Status.PASS, message="the output is not finite")
    like = next((what for what, reading in readings.items() if compare(reading, output).excess <= 1), "")
    said = f"it is read as {like}" if like else "its output matches no valid id"
    told = f"{_what(case.outside)} {outside_id(case)} is not refused: {said}"
    if promised.startswith(PROMISES):
        return Result(**row, status=Status.DIFFERS, message=f"{told}; the manifest says {promised}")
    return Result(**row, status=Status.TOLD, message=told)


def _what(side: str) -> str:
    return "segment" if side == "segment_bs" else f"{side} id"
