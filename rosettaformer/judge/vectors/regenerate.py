"""Generates vectors in a process whose arithmetic is the same on all machines of one kind.

`python -m rosettaformer.judge.vectors.regenerate DIR` reads case ids as JSON from standard input,
writes their vectors to DIR, and prints each id after writing it. The manifest contains a checksum
of itself.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...common.reading import read_json
from ...files.checkpoints import container
from ..case import Case
from ..expectation import tolerance
from ..suite import all_cases
from ..suite.case_files import MANIFEST, arrays_of, manifest, row_of, write_manifest

SEAL = "sha256"  # the field with the checksum of all other fields


def digest(data: bytes) -> str:
    """Returns the data's SHA-256."""
    return hashlib.sha256(data).hexdigest()


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest with the SHA-256 of its other fields, as compact sorted JSON."""
    content = {name: value for name, value in manifest.items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return content | {SEAL: digest(text.encode())}


def read(directory: Path) -> dict[str, Any]:
    """Returns the manifest. Raises ValueError if the file is not a manifest of vectors."""
    try:
        manifest = read_json(directory / MANIFEST)
        complete = isinstance(manifest["suite"], int) and all(map(_is_row, manifest["cases"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} holds no vectors: {MANIFEST} cannot be read ({error!r})") from None
    if not complete:
        raise ValueError(f"{directory} holds no vectors: {MANIFEST} is not a manifest of vectors")
    return manifest


def problems(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the manifest as a whole and with its folder."""
    rows = manifest["cases"]
    if SEAL not in manifest:
        yield f"{MANIFEST} has no {SEAL}. Export the vectors again"
    elif sealed(manifest) != manifest:
        yield f"{MANIFEST} is corrupt: its {SEAL} does not match its contents"
    if not rows:
        yield f"{MANIFEST} has no cases"
    for field in ("id", "file"):
        counts = Counter(row[field] for row in rows)
        yield from (f"{MANIFEST} has more than one row with the {field} {name}" for name, count in counts.items() if count > 1)
    known = {MANIFEST, *(row["file"] for row in rows)}
    yield from (f"{path.name} is not in the manifest" for path in sorted(directory.iterdir()) if path.name not in known)


def _is_row(row: Any) -> bool:
    """Whether the row describes a case completely and names a file in the same folder."""
    kinds = {str: ("id", "component", "dtype", "file", "sha256"), dict: ("config", "inputs", "expected"), int: ("release",)}
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), kind) for kind, names in kinds.items() for name in names)
        and all(isinstance(outputs, dict) for outputs in row["expected"].values())
        and Path(row["file"]).name == row["file"]
    )


Written = Callable[[], None]
# OpenBLAS has kernels with different summation orders for different processors; these run everywhere.
PLAIN_CORES = {"x86_64": "Prescott", "AMD64": "Prescott", "aarch64": "ARMV8"}


def generate(directory: Path, ids: Sequence[str], written: Written = lambda: None) -> None:
    """Writes the vectors into a new folder. Raises RuntimeError if the process fails."""
    directory.mkdir()
    command = [sys.executable, "-m", __name__, str(directory)]
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as errors:
        json.dump(list(ids), asked)
        asked.seek(0)
        with subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()) as process:
            try:
                for _ in process.stdout or ():
                    written()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"generating the vectors failed:\n{errors.read()}")


def environment() -> dict[str, str]:
    """Returns environment variables that make arithmetic independent of the processor.

    Three libraries choose code by processor: OpenBLAS for products; NumPy for exp, tanh, sin and
    others, by dispatched features; and the C library for exp, pow and others, by AVX2 and FMA. The
    variants differ in the last bit, and so do sums divided among threads.
    """
    dispatched = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    pinned = {
        "OPENBLAS_CORETYPE": PLAIN_CORES.get(platform.machine(), ""),
        "OPENBLAS_NUM_THREADS": "1",
        "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return os.environ | {name: value for name, value in pinned.items() if value}


def made_with() -> dict[str, str]:
    """Returns what still determines the last bits in that environment."""
    return {"numpy": np.__version__, "system": platform.system(), "machine": platform.machine(), "libc": "-".join(platform.libc_ver())}


def _write(directory: Path, cases: Iterable[Case]) -> None:
    rows = []
    for case in cases:
        path = directory / f"{case.component}.{case.name}.safetensors"
        expected = {dtype: tolerance.expect(case.at(dtype)) for dtype in case.dtypes}
        tensors = arrays_of(case) | {
            f"expected.{dtype}.{name}": expectation.reference
            for dtype, outputs in expected.items()
            for name, expectation in outputs.items()
        }
        container.write(path, tensors, {})
        rows.append(_row(case, expected) | {"file": path.name, "sha256": digest(path.read_bytes())})
        print(case.id, flush=True)
    write_manifest(directory, sealed(manifest(rows) | {"made_with": made_with()}))


def _row(case: Case, expected: dict[str, dict[str, tolerance.Expectation]]) -> dict[str, Any]:
    numbers = ("noise", "noise_rmse", "unit", "bound", "bound_rmse")
    about = {"release": case.release, "core": case.core, "catches": list(case.catches)}
    return row_of(case) | about | {
        "expected": {
            dtype: {
                name: {"dtype": str(expectation.dtype)} | {number: getattr(expectation, number) for number in numbers}
                for name, expectation in outputs.items()
            }
            for dtype, outputs in expected.items()
        }
    }  # fmt: skip


if __name__ == "__main__":
    wanted = set(json.load(sys.stdin))
    _write(Path(sys.argv[1]), [case for case in all_cases(grad=True) if case.id in wanted])
