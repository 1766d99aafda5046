"""Ports that do anything but compute: each gives failing rows quickly and leaves nothing behind."""

import dataclasses
import io
import json
import os
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hostile_ports
import pytest
from expectations import suite
from invoke import marked
from rich.console import Console

from rosettaformer.common.processes import wire
from rosettaformer.judge import compare, result, runner
from rosettaformer.judge.report import junit, matrix
from rosettaformer.judge.summary import Summary

pytestmark = pytest.mark.product

LIMIT = 3.0
LATER = 20.0  # seconds after the limit within which a run must end on a busy machine; a hanging run never ends
MARK = "HOSTILE_PORTS"
AT_ONCE = 3
COUNT = 200


def _case(component: str):
    """Returns a case of the component that no constant output passes, evaluated twice."""
    cases = [case for case in suite() if case.component == component and case.core and "float64" in case.dtypes]
    return dataclasses.replace(cases[0], twice=True)


CASES = {component: _case(component) for component in hostile_ports.COMPONENTS}


def _state() -> list[object]:
    functions = [compare.compare, result.judge, runner.run, wire.receive, len, isinstance, os._exit]
    return [*functions, os.getcwd(), dict(os.environ)]


def _faults(folder: Path, port: tuple[str, str, str, str]) -> list[str]:
    kind, name, moment, component = port
    canary = folder / "canary"
    folder.mkdir()
    (folder / "port.py").write_text(hostile_ports.source(kind, name, moment, component, str(canary)))
    start = time.monotonic()
    rows = runner.run([CASES[component]], [str(folder / "port.py")], ["float64"], limit=LIMIT)
    seconds = time.monotonic() - start
    summary = Summary(rows)
    faults = [f"{row.status}: {row.message}" for row in rows if row.status == "pass" or not row.message.isprintable()]
    faults += [] if rows and not summary.conforms else ["it conforms"]
    faults += [f"it took {seconds:.1f} s"] if seconds > LIMIT + LATER else []
    faults += ["its answer ran code here"] if canary.exists() else []
    shown = io.StringIO()
    matrix.render(Console(file=shown, width=120), summary)
    written = junit.render(summary) + json.dumps(summary.to_dict())
    faults += ["what is shown is not printable"] if not (shown.getvalue() + written).replace("\n", "").isprintable() else []
    return [f"{'/'.join(port)}: {fault} {[(row.status, row.message[:200]) for row in rows]}" for fault in faults]


def _run(folder: Path, ports: Sequence[tuple[str, str, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = _state()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        faults = [fault for found in pool.map(lambda pair: _faults(folder / str(pair[0]), pair[1]), enumerate(ports)) for fault in found]
    assert not faults, "\n".join(faults)
    assert _state() == before
    assert not marked(f"{MARK}={mark}")


def test_a_sample_of_hostile_ports_passes_nothing_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path, hostile_ports.SAMPLE, monkeypatch)


@pytest.mark.conformance
def test_200_hostile_ports_pass_nothing_and_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = list(dict.fromkeys([*hostile_ports.SAMPLE, *hostile_ports.generated(COUNT)]))
    assert len(ports) >= COUNT
    _run(tmp_path, ports, monkeypatch)
