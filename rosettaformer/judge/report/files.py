"""Writes the reports of a run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common import atomic
from ..diagnosis import Diagnosis
from ..runner import describe_ports
from ..summary import Summary
from . import junit

STDOUT = "-"  # in place of a JSON file


def require(paths: Iterable[Path]) -> None:
    """Raises ValueError before a long run if a report could not be written after it."""
    for path in paths:
        if str(path) != STDOUT:
            atomic.require(path)


def write(summary: Summary, json_file: Path | None, junit_file: Path | None) -> None:
    """Writes the results as JSON and JUnit files, if named."""
    if json_file:
        write_json(json_file, summary.to_dict())
    if junit_file:
        atomic.write_text(junit_file, junit.render(summary))


def write_html(summary: Summary, path: Path, ports: Sequence[str], diagnoses: Mapping[str, Diagnosis]) -> None:
    """Writes the results as an HTML page. ports: those to describe. diagnoses: of failing ones."""
    from . import html

    findings = {port: diagnosis.findings for port, diagnosis in diagnoses.items()}
    divergences = [divergence for diagnosis in diagnoses.values() for divergence in diagnosis.divergences]
    atomic.write_text(path, html.render(summary, describe_ports(ports), findings, divergences))


def write_json(path: Path, value: Any) -> None:
    """Writes the value as JSON to the file, or prints it if the file is named -."""
    text = json.dumps(value, indent=1)
    if str(path) == STDOUT:
        print(text)
    else:
        atomic.write_text(path, text + "\n")
