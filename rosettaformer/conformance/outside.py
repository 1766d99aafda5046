"""Ids out of range: an artefact refuses them, or its answer shows them as NaN; otherwise it is told what becomes of them."""

import dataclasses
from typing import Any

import numpy as np

from .case import Case
from .compare import compare
from .reference.expectation_store import Store
from .result import Expected, Result
from .status import Kind, Status


def expected(case: Case, store: Store) -> Expected:
    """Returns what the reference gives if an id out of range is read as another one, by what the other one is."""
    ids, size = case.inputs[case.outside], getattr(case.config, f"{case.outside}_vocabulary")
    others = {"the last id of the vocabulary": size - 1, "id 0": 0}
    found: Expected = {}
    for what, id_ in others.items():
        inputs = dict(case.inputs) | {case.outside: np.where((ids < 0) | (ids >= size), id_, ids)}
        found[what] = store.expect(dataclasses.replace(case, inputs=inputs, outside=""))["output"]
    return found


def judge(row: dict[str, Any], case: Case, kind: str, answer: Any, readings: Expected) -> Result:
    """Returns the result of a case with an id out of range. readings: see `expected`."""
    if kind == Kind.ERROR:
        return Result(**row, status=Status.PASS, message=f"refused: {answer}")
    if kind != Kind.OUTPUTS:
        return Result(**row, status=Status(kind), message=str(answer))
    ids, size = case.inputs[case.outside], getattr(case.config, f"{case.outside}_vocabulary")
    id_ = int(ids[(ids < 0) | (ids >= size)][0])
    output = answer["output"]
    if not np.isfinite(output.astype(np.float64)).all():
        return Result(**row, status=Status.PASS, message="the answer is not finite")
    like = next((what for what, reading in readings.items() if compare(reading, output).excess <= 1), "")
    said = f"is read as {like}" if like else "has an answer like that of no other id"
    return Result(**row, status=Status.TOLD, message=f"{case.outside} id {id_} is not refused: it {said}")
