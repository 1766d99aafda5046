"""Renders the results as one self-contained HTML page."""

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

    ports: the description of every port, see `runner.describe_ports`. findings: the findings of
    diagnosis, by port. divergences: where ports first diverge, with the trees of their components.
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
    """Returns the variables of the templates, and the `data` of their script."""
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
    """Returns the columns of the results table: port, mode and device, each with its dtypes."""
    dtypes = [dtype for dtype in SHORT if any(row[1] == dtype for row in grouping.shown_rows(summary))]
    return [{"port": port, "mode": mode, "device": device, "dtypes": dtypes} for port, mode, device in summary.columns]


def _matrix(summary: Summary) -> list[dict[str, Any]]:
    """Returns the rows of the results table: a component and its cells by column."""
    columns = [((group["port"], group["mode"], group["device"]), dtype) for group in _groups(summary) for dtype in group["dtypes"]]
    components = dict.fromkeys(component for component, _ in grouping.shown_rows(summary))
    return [{"component": name, "cells": [_cell(summary, name, dtype, column) for column, dtype in columns]} for name in components]


def _cell(summary: Summary, component: str, dtype: str, column: tuple[str, str, str]) -> dict[str, Any]:
    """Returns the kind (which gives the color), text, statuses and link of a cell."""
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
    """Returns the URL fragment that opens a case (by its id) or a cell (by its component)."""
    return f"#{quote(name)}?" + urlencode({"port": port, "dtype": dtype, "mode": mode, "device": device}, quote_via=quote)


def _data(summary: Summary, uncovered: Mapping[str, Sequence[str]], findings: Mapping[str, Sequence[Finding]]) -> dict[str, Any]:
    """Returns the data of the page's script: findings, and results of covered components."""
    results = [result for result in summary.results if result.component not in uncovered.get(result.port, ())]
    rows = [{name: getattr(result, name) for name in SHOWN} | {"device": result.place} for result in results]
    texts = [{"port": port, "component": finding.component, "text": finding.text} for port, found in findings.items() for finding in found]
    return {"results": jsonable(rows), "findings": texts, "failures": FAILURES, "highest": HIGHEST}


def described(about: Mapping[str, Any]) -> str:
    """Returns the description of a started port: versions, devices, matmul precision."""
    versions = ", ".join(f"{name} {number}" for name, number in about.get("version", {}).items())
    devices, precision = ", ".join(about.get("devices", ())), about.get("precision", "")
    return "; ".join(filter(None, (versions, devices and f"on {devices}", precision and f"matmul {precision}"))) or "ready"


def significant(value: float | None) -> str:
    """Returns the number with three digits, or a dash if there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"
