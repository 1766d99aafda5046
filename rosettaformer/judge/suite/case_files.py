"""Cases as files for programs in any language: `manifest.json`, and one safetensors file per case.

The manifest has a row for each case: id, component, dtype, config, the inputs that are plain
values, the file of its arrays, and the file for its outputs. Arrays are named `inputs.<name>` and
`parameters.<canonical name>`. The outputs are a safetensors file with `output` (and `weights`, if
the component returns a pair), or with the named values of a mapping (gradients have the inputs'
names and `parameters.<canonical name>`). A JSON file of the same name, with a reason, replaces
missing outputs. Paths are relative and use slashes.
"""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ...common.processes import Answer, printable
from ...common.reading import read_bytes, read_json
from ...files.checkpoints import container
from ..case import SUITE_RELEASE, Case
from ..status import Kind

MANIFEST = "manifest.json"
LARGEST = 1 << 30  # the largest output file, in bytes, if no other bound is known
HEADER = 1 << 20  # the largest header of an output file, in bytes
REASONS = (Kind.NOT_COVERED, Kind.UNSUPPORTED, Kind.ERROR)


def row_of(case: Case) -> dict[str, Any]:
    """Returns a case's row in the manifest, without paths."""
    return {
        "id": case.id,
        "component": case.component,
        "dtype": case.dtype,
        "config": case.config.to_dict(),
        "inputs": {name: value for name, value in case.inputs.items() if not isinstance(value, np.ndarray)},
    }


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    """Returns a case's arrays by their names in its file."""
    inputs = {f"inputs.{name}": value for name, value in case.inputs.items() if isinstance(value, np.ndarray)}
    return inputs | {f"parameters.{name}": value for name, value in case.parameters.items()}


def manifest(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the manifest of these rows."""
    return {"suite": SUITE_RELEASE, "rosettaformer": version("rosettaformer"), "cases": list(rows)}


def write_cases(directory: Path, cases: Mapping[str, Case]) -> None:
    """Writes cases, by the path of their outputs, in that order, into an empty folder."""
    rows = []
    for number, (outputs, case) in enumerate(cases.items(), start=1):
        file = f"{number:04}.safetensors"
        container.write(directory / file, arrays_of(case), {})
        rows.append(row_of(case) | {"file": file, "outputs": outputs})
    write_manifest(directory, manifest(rows))


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Writes a manifest, one line per case. Equal manifests give equal bytes."""
    others = json.dumps({name: value for name, value in manifest.items() if name != "cases"}, ensure_ascii=False)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in manifest["cases"])
    (directory / MANIFEST).write_text(f'{others[:-1]}, "cases": [\n{rows}\n]}}\n', encoding="utf-8")


def answer_path(case: Case) -> str:
    """Returns the path of a case's outputs."""
    return f"{case.dtype}/{case.id}.safetensors"


def read_answer(path: Path, most: int | None = None) -> Answer | None:
    """Returns the outputs in that file, or the reason in the JSON file next to it, or None.

    Raises ValueError or OSError if the file is invalid or larger than `most` bytes plus its header.
    """
    reason = path.with_suffix(".json")
    if reason.exists():
        return _read_reason(reason)
    if not path.exists():
        return None
    found = container.parse(read_bytes(path, LARGEST if most is None else most + HEADER))
    if found.problems:
        raise ValueError(f"the output file {path.name} {found.problems[0]}")
    return Kind.OUTPUTS, {printable(name): array for name, array in found.tensors.items()}


def _read_reason(path: Path) -> Answer:
    said = read_json(path)
    if isinstance(said, dict) and len(said) == 1 and (kind := next(iter(said))) in REASONS:
        return kind, printable(str(said[kind]))
    raise ValueError(f"{path.name} must hold one reason under a key of {', '.join(REASONS)}; got {said!r}")
