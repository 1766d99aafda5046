"""The numbers of a report as JSON."""

import dataclasses
from typing import Any

import numpy as np

from ...common.outputs import versioned
from ...judge.expectation.tolerance import Expectation
from ...judge.summary import jsonable
from ..engine.speed import Speed
from ..one_model.layer_errors import Attention, OutputError
from ..one_model.making import Report
from ..one_model.training import Curves
from .charts import recorded_chart
from .page import facts, verdict


def to_dict(report: Report) -> dict[str, Any]:
    """Returns every number of the report."""
    good, headline, lead = verdict(report)
    recorded, layers = recorded_chart(report.subject.log), report.layers
    fields = jsonable(
        {
            "conforms": good,
            "verdict": headline,
            "summary": lead,
            "facts": facts(report),
            "missing": report.missing,
            "problems": report.problems,
            "config": report.subject.config.to_dict(),
            "inputs": {name: np.asarray(array).tolist() for name, array in report.subject.inputs.items()},
            "tokens": {side: list(words) for side, words in report.subject.tokens.items()},
            "matrix": report.summary.to_dict() if report.summary else None,
            "predictions": report.predictions and dataclasses.asdict(report.predictions) | {"sentence": report.predictions.sentence},
            "layers": layers and [*map(_place, layers.outputs)],
            "components": layers and [*map(_place, layers.tree)],
            "attention": layers and [*map(_attention, layers.attention)],
            "training": report.curves and _curves(report.curves),
            "recorded": recorded and {"step": [*map(int, recorded.labels)], **recorded.curves},
            "speed": report.speed and _speed(report.speed),
            "environment": report.stamp,
        }
    )
    return versioned("report", fields)


def _fields(one: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def _place(place: OutputError) -> dict[str, Any]:
    errors = {name: _fields(one, "error", "ratio", "excess", "message") for name, one in place.found.items()}
    return _fields(place, "name", "path", "dtype", "largest", "noise") | {"found": errors}


def _attention(one: Attention) -> dict[str, Any]:
    return {
        **_fields(one, "name", "dtype"),
        "queries": list(one.queries),
        "keys": list(one.keys),
        "noise": list(one.noise_l),
        "largest": {name: [one.units(name, layer).tolist() for layer in range(len(found))] for name, found in one.found_lhts.items()},
        "reference": one.reference_lhts.tolist(),
        "differences": {name: (found - one.reference_lhts).tolist() for name, found in one.found_lhts.items()},
    }


def _curves(curves: Curves) -> dict[str, Any]:
    found = {
        name: {"loss": [one for one, _ in pairs], "gradient_norm": [two for _, two in pairs], "units": curves.units(name)}
        for name, pairs in curves.found.items()
    }
    reference = {"loss": _expected(curves.losses), "gradient_norm": _expected(curves.norms)}
    return {"reference": reference, "found": found, "notes": list(curves.notes)}


def _expected(values: list[Expectation]) -> list[dict[str, float]]:
    return [{"value": float(one.reference), "noise": one.plain_error} for one in values]


def _speed(speed: Speed) -> dict[str, Any]:
    rows = [
        {name: value for name, value in dataclasses.asdict(row).items() if name != "first_s"}
        | _fields(row, "compile_s", *["median_ms"] * bool(row.samples_ms))
        for row in speed.timings
    ]
    return _fields(speed, "rounds", "load", "warnings", "threads", "tokens", "alone", "peaks") | {"rows": rows}
