"""Golden vectors: cases with the reference's outputs, in files for programs in any language.

The folder holds `manifest.json` and one safetensors file per case. The file holds the float64
inputs and parameters and, for each dtype, `expected.<dtype>.<output>`: the float64 reference on
inputs rounded to that dtype. For each dtype and output the manifest adds the output's dtype, the
rounding error of plain NumPy, one ulp, and the largest errors that pass. `sha256` is the checksum
of all other fields, as JSON without spaces and with sorted names.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...common.atomic import replacing
from ...files.checkpoints import container
from ..case import DTYPES, SUITE_RELEASE, Case
from ..expectation import near_ties, statistics
from ..expectation.components import without_other_layouts
from ..expectation.tolerance import expect
from ..result import Result, judge
from ..status import Kind
from ..suite import all_cases
from ..suite.case_files import MANIFEST, answer_path, read_answer
from . import regenerate
from .regenerate import Written, generate

DATA = ("component", "dtype", "config", "inputs", "release", "file")  # the fields that describe the case itself
NUMBERS = ("noise", "noise_rmse", "unit")  # of an output; they determine its bounds

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Finding:
    """A problem with a folder of vectors. rounding: may be another machine's last bits."""

    message: str
    rounding: bool = False


def export(directory: Path, cases: Sequence[Case], written: Written = lambda: None) -> None:
    """Writes the cases' vectors, replacing older ones. written: called after each case.

    Raises ValueError if the folder holds other files or cannot be created.
    """
    target = directory.resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{directory} is not a folder")
    if target.is_dir() and any(target.iterdir()):
        names = {MANIFEST, *(row["file"] for row in regenerate.read(directory)["cases"])}
        if others := sorted({path.name for path in target.iterdir()} - names):
            raise ValueError(f"{directory} holds files other than vectors: {', '.join(others[:5])}. Choose an empty folder, or remove them")
    with replacing(target, folder=True) as temporary:
        generate(temporary, [case.id for case in cases], written)


def verify(directory: Path, written: Written = lambda: None) -> list[Finding]:
    """Returns all problems with the vectors, also compared with what the suite generates now.

    written: called after each regenerated case. Raises ValueError if the folder holds no vectors,
    or those of a newer suite release.
    """
    manifest = regenerate.read(directory)
    if manifest["suite"] > SUITE_RELEASE:
        raise ValueError(
            f"the vectors are of suite release {manifest['suite']}; this rosettaformer has release {SUITE_RELEASE}. Upgrade rosettaformer"
        )
    findings = [Finding(problem) for problem in regenerate.problems(directory, manifest)]
    if not manifest["cases"]:
        findings.append(Finding("nothing was compared: the manifest lists no cases"))
    intact = {}
    for row in manifest["cases"]:
        if problem := _damage(directory, row):
            findings.append(Finding(problem))
        else:
            intact[row["id"]] = row
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "again"
        generate(again, list(intact), written)
        made = {row["id"]: row for row in regenerate.read(again)["cases"]}
        for case_id, row in intact.items():
            if case_id in made:
                tensors = [container.read(place / row["file"]).tensors for place in (directory, again)]
                findings += _differences(row, made[case_id], *tensors)
            else:
                findings.append(Finding(f"{case_id}: this case is not in the suite"))
    return findings


def judge_results(directory: Path, cases: Sequence[Case], dtypes: Sequence[str]) -> list[Result]:
    """Judges outputs from elsewhere, in DIRECTORY/<dtype>/<component>/<name>.safetensors.

    Raises ValueError if the folder does not exist, or for files that match no case.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a folder of outputs")
    known = {answer_path(case.at(dtype)) for case in (*all_cases(grad=True), *cases) for dtype in DTYPES}
    found = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*.safetensors"))]
    if strangers := [path for path in found if path not in known]:
        raise ValueError("these files match no case; name them <dtype>/<component>/<name>.safetensors:\n  " + "\n  ".join(strangers))
    asked = without_other_layouts(cases, {path.split("/")[1] for path in found})
    return [_judge_file(directory, case.at(dtype)) for case in asked for dtype in dtypes if dtype in case.dtypes]


def _judge_file(directory: Path, case: Case) -> Result:
    row = {"case": case.id, "component": case.component, "port": str(directory), "dtype": case.dtype, "device": "cpu", "mode": ""}
    try:
        kind, answer = read_answer(directory / answer_path(case)) or (Kind.NOT_GIVEN, "the file of outputs does not exist")
    except (ValueError, OSError) as error:
        kind, answer = Kind.ERROR, str(error)
    if kind == Kind.OUTPUTS and not isinstance(answer, str):
        answer = statistics.measured(case.component, case.inputs, answer)
    return judge(row, kind, answer, near_ties.followed(case, expect(case), answer) if kind == Kind.OUTPUTS else {})


def _damage(directory: Path, row: Mapping[str, Any]) -> str:
    path = directory / row["file"]
    if not path.is_file():
        return f"{row['file']} is missing"
    return (
        ""
        if regenerate.digest(path.read_bytes()) == row["sha256"]
        else f"{row['file']} is corrupt: its SHA-256 does not match the manifest"
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], tensors: Tensors, again: Tensors) -> Iterator[Finding]:
    """Yields how a regenerated case differs, by the manifests' rows and the files' tensors."""
    given, made = ({name: value for name, value in each.items() if not name.startswith("expected.")} for each in (tensors, again))
    if any(before[field] != now[field] for field in DATA) or not _identical(given, made):
        yield Finding(f"{now['id']}: the case's inputs or parameters differ")
        return
    if tensors.keys() != again.keys() or _outputs(before) != _outputs(now):
        yield Finding(f"{now['id']}: the names of the outputs differ")
        return
    for dtype, name in _outputs(now):
        key, where = f"expected.{dtype}.{name}", f"of {now['id']} in {dtype}: {name}"
        if not _identical({key: tensors[key]}, {key: again[key]}):
            yield _other_value(where, tensors[key], again[key], now["expected"]["float64"][name]["bound"])
        if before["expected"][dtype][name] != now["expected"][dtype][name]:
            yield _other_noise(where, before["expected"][dtype][name], now["expected"][dtype][name])


def _outputs(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(dtype, name) for dtype, outputs in row["expected"].items() for name in outputs]


def _identical(first: Tensors, second: Tensors) -> bool:
    """Whether names, dtypes, shapes and bits are the same."""
    return first.keys() == second.keys() and all(
        (value.dtype, value.shape, value.tobytes()) == (second[name].dtype, second[name].shape, second[name].tobytes())
        for name, value in first.items()
    )


def _other_value(where: str, before: np.ndarray, now: np.ndarray, noise: float) -> Finding:
    if (before.dtype, before.shape) != (now.dtype, now.shape) or before.dtype.kind != "f":
        return Finding(f"the expected result {where} differs")
    if not np.array_equal(np.isfinite(before), np.isfinite(now)) or not np.array_equal(before[~np.isfinite(now)], now[~np.isfinite(now)]):
        return Finding(f"the expected result {where} is finite at other places")
    size = float(np.abs(before - now)[np.isfinite(now)].max(initial=0.0))
    return Finding(f"the expected result {where} differs by {size:.2g}; float64 rounding allows {noise:.2g}", size <= noise)


def _other_noise(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Finding:
    """Returns how another machine's rounding error differs.

    It depends on last bits and may be several times as large, but must stay within the other
    machine's bound.
    """
    try:
        changes = [f"{number} {before[number]:.3g}, now {now[number]:.3g}" for number in NUMBERS if before[number] != now[number]]
        close = before["noise"] <= now["bound"] and now["noise"] <= before["bound"] and before["unit"] == now["unit"]
        rounding = close and before["dtype"] == now["dtype"]
    except (KeyError, TypeError, ValueError):
        return Finding(f"the manifest lacks the rounding error {where}")
    return Finding(f"the rounding error {where} differs: {', '.join(changes) or 'its bounds'}", rounding and bool(changes))
