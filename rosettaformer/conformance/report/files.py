"""Writes the reports of a run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import atomic
from ..diagnosis import Diagnosis
from ..runner import describe_ports
from . import junit
from .summary import Summary

STDOUT = "-"  # instead of a JSON file


def require(paths: Iterable[Path]) -> None:
    """Raises ValueError, before a long run, if a report could not be written after it."""
    for path in paths:
        if str(path) != STDOUT:
            atomic.require(path)


def write(
    summary: Summary, json_file: Path | None, junit_file: Path | None, html_file: Path | None, ports: Sequence[str],
    diagnoses: Mapping[str, Diagnosis],
) -> None:  # fmt: skip
    """Writes the requested reports. ports: the ports that the HTML report describes; diagnoses: of those that fail."""
    if json_file:
        write_json(json_file, summary.to_dict())
    if junit_file:
        atomic.write_text(junit_file, junit.render(summary))
    if html_file:
        from . import html

        findings = {port: diagnosis.findings for port, diagnosis in diagnoses.items()}
        divergences = [divergence for diagnosis in diagnoses.values() for divergence in diagnosis.divergences]
        atomic.write_text(html_file, html.render(summary, describe_ports(ports), findings, divergences))


def write_json(path: Path, value: Any) -> None:
    """Writes the value as JSON to the file, or prints it if the file is named -."""
    text = json.dumps(value, indent=1)
    if str(path) == STDOUT:
        print(text)
    else:
        atomic.write_text(path, text + "\n")
