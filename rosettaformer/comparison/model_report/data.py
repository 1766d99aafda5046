"""The numbers of a report, as JSON can hold them."""

import dataclasses
from typing import Any

import numpy as np

from ...judge.expectation.tolerance import Expectation
from ...judge.summary import jsonable
from .charts import recorded_chart
from .layer_errors import Attention, Layers, OutputError
from .page import facts, verdict
from .report_making import Report
from .speed import Speed
from .training import Curves

VERSION = 2  # of the JSON


def to_dict(report: Report) -> dict[str, Any]:
    """Returns every number. Attention has the reference's weights, and each implementation's differences from them."""
    good, headline, lead = verdict(report)
    recorded = recorded_chart(report.subject.log)
    return jsonable(  # type: ignore[no-any-return]
        {
            "version": VERSION,
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
            **_layers(report.layers),
            "training": _curves(report.curves),
            "recorded": recorded and {"step": [*map(int, recorded.labels)], **recorded.curves},
            "speed": _speed(report.speed),
            "environment": report.stamp,
        }
    )


def _layers(found: Layers | None) -> dict[str, Any]:
    if found is None:
        return {"layers": None, "components": None, "attention": None}
    return {
        "layers": [*map(_place, found.outputs)],
        "components": [*map(_place, found.tree)],
        "attention": [*map(_attention, found.attention)],
    }


def _place(place: OutputError) -> dict[str, Any]:
    errors = {
        name: {"error": one.error, "ratio": one.ratio, "excess": one.excess, "message": one.message} for name, one in place.found.items()
    }
    return {"name": place.name, "path": place.path, "dtype": place.dtype, "largest": place.largest, "noise": place.noise, "found": errors}


def _attention(one: Attention) -> dict[str, Any]:
    return {
        "name": one.name,
        "dtype": one.dtype,
        "queries": list(one.queries),
        "keys": list(one.keys),
        "noise": list(one.noise_l),
        "largest": {name: [one.units(name, layer).tolist() for layer in range(len(found))] for name, found in one.found_lhts.items()},
        "reference": one.reference_lhts.tolist(),
        "differences": {name: (found - one.reference_lhts).tolist() for name, found in one.found_lhts.items()},
    }


def _curves(curves: Curves | None) -> dict[str, Any] | None:
    if curves is None:
        return None
    found = {
        name: {"loss": [one for one, _ in pairs], "gradient_norm": [two for _, two in pairs], "units": curves.units(name)}
        for name, pairs in curves.found.items()
    }
    return {
        "reference": {"loss": _expected(curves.losses), "gradient_norm": _expected(curves.norms)},
        "found": found,
        "notes": list(curves.notes),
    }


def _expected(values: list[Expectation]) -> list[dict[str, float]]:
    return [{"value": float(one.reference), "noise": one.plain_error} for one in values]


def _speed(speed: Speed | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    rows = [dataclasses.asdict(row) | ({"median_ms": row.median_ms} if row.samples_ms else {}) for row in speed.timings]
    return {
        "rounds": speed.rounds,
        "load": speed.load,
        "warnings": speed.warnings,
        "threads": speed.threads,
        "tokens": speed.tokens,
        "rows": rows,
        "alone": speed.alone,
        "peaks": speed.peaks,
    }
