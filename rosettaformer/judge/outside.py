"""Ids out of range: an artefact refuses them, or its answer shows them as NaN; otherwise it is told what becomes of them."""

import dataclasses
from typing import Any

import numpy as np

from .case import Case
from .compare import compare
from .expectation import lowered
from .expectation.expectation_store import Store
from .result import Expected, Result
from .status import Kind, Status
from .suite.artefact import ids_in

PROMISES = ("refused", "nan")  # how a manifest's word begins that excludes an answer


def expected(case: Case, store: Store, precision: str = "") -> Expected:
    """Returns what the reference gives if an id out of range is read as another one, by what the other one is. precision: see `lowered`."""
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

    readings: see `expected`. promised: what the file's manifest says becomes of the id.
    """
    if kind == Kind.ERROR:
        return Result(**row, status=Status.PASS, message=f"refused: {answer}")
    if kind != Kind.OUTPUTS:
        return Result(**row, status=Status(kind), message=str(answer))
    ids, size = case.inputs[case.outside], ids_in(case.config, case.outside)
    id_ = int(ids[(ids < 0) | (ids >= size)][0])
    output = answer["output"]
    if not np.isfinite(output.astype(np.float64)).all():
        return Result(**row, status=Status.PASS, message="the answer is not finite")
    like = next((what for what, reading in readings.items() if compare(reading, output).excess <= 1), "")
    said = f"is read as {like}" if like else "has an answer like that of no other"
    told = f"{_what(case.outside)} {id_} is not refused: it {said}"
    if promised.startswith(PROMISES):
        return Result(**row, status=Status.DIFFERS, message=f"{told}; its manifest says: {promised}")
    return Result(**row, status=Status.TOLD, message=told)


def _what(side: str) -> str:
    return "segment" if side == "segment_bs" else f"{side} id"
