"""Renders the results as one self-contained HTML page, which needs no network."""

import datetime
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlencode

from ...common import pages
from ..case import SUITE_RELEASE
from ..compare import HIGHEST
from ..diagnosis import Finding
from ..diagnosis.divergence import Divergence
from ..expectation.tolerance import MAX_FACTOR
from ..status import FAILURES, Kind
from ..summary import Summary, jsonable
from . import grouping
from .grouping import SHORT

SHOWN = ("case", "component", "port", "dtype", "device", "mode", "status", "message", "ratio", "error", "noise", "ulps", "allowed", "worst",
         "output", "heat", "seconds")  # fmt: skip


def render(
    summary: Summary,
    ports: Mapping[str, tuple[str, Any]] | None = None,
    findings: Mapping[str, Sequence[Finding]] | None = None,
    divergences: Sequence[Divergence] = (),
) -> str:
    """Renders the page.

    ports: what every port says about itself, see `runner.describe_ports`. findings: what diagnosis found, by port. divergences: where ports
    first diverge, with the tree of their components.
    """
    templates = pages.environment(__package__)
    templates.filters["significant"] = significant
    return templates.get_template("report.html.jinja").render(
        **context(summary, findings or {}),
        environment=list(_environment(summary, ports or {})),
        findings=findings or {},
        divergences=divergences,
    )


def context(summary: Summary, findings: Mapping[str, Sequence[Finding]] | None = None) -> dict[str, Any]:
    """Returns what the templates of the matrix, the lists and the cases take, and the `data` of their script."""
    uncovered = grouping.uncovered(summary)
    return {
        "summary": summary,
        "groups": _groups(summary),
        "matrix": _matrix(summary),
        "statuses": list(dict.fromkeys(result.status for result in summary.results)),
        "short": SHORT,
        "link": _link,
        "uncovered": uncovered,
        "not_compared": grouping.reasons(summary),
        "failed": grouping.alike(summary.failed),
        "accepted": grouping.alike(summary.accepted),
        "limit": MAX_FACTOR,
        "data": _data(summary, uncovered, findings or {}),
    }


def _environment(summary: Summary, ports: Mapping[str, tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    yield "suite", f"release {SUITE_RELEASE}, rosettaformer {version('rosettaformer')}"
    yield "judge", f"NumPy {version('numpy')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    for port, (kind, about) in ports.items():
        if kind == Kind.READY:
            yield port, described(about)
        else:
            yield port, f"{kind}: {about}"
    yield "made", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _groups(summary: Summary) -> list[dict[str, Any]]:
    """Returns the columns of the matrix: port, mode and device, and below each its dtypes."""
    dtypes = [dtype for dtype in SHORT if any(row[1] == dtype for row in grouping.shown_rows(summary))]
    return [{"port": port, "mode": mode, "device": device, "dtypes": dtypes} for port, mode, device in summary.columns]


def _matrix(summary: Summary) -> list[dict[str, Any]]:
    """Returns the rows of the matrix: a component and its cells, in the order of the columns."""
    columns = [((group["port"], group["mode"], group["device"]), dtype) for group in _groups(summary) for dtype in group["dtypes"]]
    components = dict.fromkeys(component for component, _ in grouping.shown_rows(summary))
    return [{"component": name, "cells": [_cell(summary, name, dtype, column) for column, dtype in columns]} for name in components]


def _cell(summary: Summary, component: str, dtype: str, column: tuple[str, str, str]) -> dict[str, Any]:
    """Returns what one cell shows: its kind (its colour), its text, its statuses, and its link."""
    (port, mode, device), cell = column, summary.cell((component, dtype), column)
    counts, ratio = cell.counts, cell.ratio
    kind = "fail" if cell.failed else "accepted" if cell.accepted else "pass" if cell.passed else "other" if counts else "none"
    number = "pass" if math.isnan(ratio) else f"{ratio:.2f}"
    text = {"fail": f"{cell.failed}/{cell.compared}", "accepted": f"{cell.accepted}/{cell.compared}", "pass": number}.get(kind, "–")
    words = ", ".join(f"{count} {status}" for status, count in counts.items())
    return {
        "port": port,
        "dtype": dtype,
        "kind": kind,
        "text": text,
        "ratio": min(ratio / MAX_FACTOR, 1) if kind == "pass" and not math.isnan(ratio) else 0,
        "partly": f"{cell.compared}/{counts.total()}" if cell.left and kind != "other" else "",
        "statuses": "|".join(counts),
        "label": f"{component} {dtype}, {port} {mode} {device}: {words}",
        "link": _link(component, port, dtype, mode, device),
    }


def _link(name: str, port: str, dtype: str, mode: str, device: str) -> str:
    """Returns the fragment that opens a case (by its id) or a cell (by its component)."""
    return f"#{quote(name)}?" + urlencode({"port": port, "dtype": dtype, "mode": mode, "device": device}, quote_via=quote)


def _data(summary: Summary, uncovered: Mapping[str, Sequence[str]], findings: Mapping[str, Sequence[Finding]]) -> dict[str, Any]:
    """Returns what the page's script reads: every result except those of components that a port does not cover at all, and the findings."""
    results = [result for result in summary.results if result.component not in uncovered.get(result.port, ())]
    rows = [{name: getattr(result, name) for name in SHOWN} | {"device": result.place} for result in results]
    texts = [{"port": port, "component": finding.component, "text": finding.text} for port, found in findings.items() for finding in found]
    return {"results": jsonable(rows), "findings": texts, "failures": FAILURES, "highest": HIGHEST}


def described(about: Mapping[str, Any]) -> str:
    """Returns what a port that is ready says of its framework, in words: versions, devices and the precision of products."""
    versions = ", ".join(f"{name} {number}" for name, number in about.get("version", {}).items())
    devices, precision = ", ".join(about.get("devices", ())), about.get("precision", "")
    return "; ".join(filter(None, (versions, devices and f"on {devices}", precision and f"matmul {precision}"))) or "ready"


def significant(value: float | None) -> str:
    """Returns the number to three digits; a dash if there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"
