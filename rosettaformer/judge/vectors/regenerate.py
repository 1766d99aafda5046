"""Makes vectors in a process whose arithmetic is the same on every machine of one kind.

`python -m rosettaformer.judge.vectors.regenerate DIR` reads the ids of cases as JSON from standard input, writes their vectors
into DIR, and prints each id when its vectors are written.
The manifest is sealed by a digest of its contents.
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

SEAL = "sha256"  # the field that holds the digest of all other fields


def digest(data: bytes) -> str:
    """Returns the SHA-256 of the data."""
    return hashlib.sha256(data).hexdigest()


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest with the SHA-256 of everything else in it, as JSON without spaces and with sorted names."""
    content = {name: value for name, value in manifest.items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return content | {SEAL: digest(text.encode())}


def read(directory: Path) -> dict[str, Any]:
    """Returns the manifest. Raises ValueError if the file is not one."""
    try:
        manifest = read_json(directory / MANIFEST)
        complete = isinstance(manifest["suite"], int) and all(map(_is_row, manifest["cases"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} holds no vectors: its {MANIFEST} cannot be read ({error!r})") from None
    if not complete:
        raise ValueError(f"{directory} holds no vectors: its {MANIFEST} is another one")
    return manifest


def problems(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the manifest as a whole, and with its folder."""
    rows = manifest["cases"]
    if SEAL not in manifest:
        yield f"{MANIFEST} has no {SEAL}: export the vectors again"
    elif sealed(manifest) != manifest:
        yield f"{MANIFEST} is damaged: its {SEAL} is not that of what it says"
    if not rows:
        yield f"{MANIFEST} has no cases"
    for field in ("id", "file"):
        counts = Counter(row[field] for row in rows)
        yield from (f"{MANIFEST} has more than one row of the {field} {name}" for name, count in counts.items() if count > 1)
    known = {MANIFEST, *(row["file"] for row in rows)}
    yield from (f"{path.name} belongs to no case" for path in sorted(directory.iterdir()) if path.name not in known)


def _is_row(row: Any) -> bool:
    """Whether the row says everything about a case, and names a file in the same folder."""
    kinds = {str: ("id", "component", "dtype", "file", "sha256"), dict: ("config", "inputs", "expected"), int: ("release",)}
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), kind) for kind, names in kinds.items() for name in names)
        and all(isinstance(outputs, dict) for outputs in row["expected"].values())
        and Path(row["file"]).name == row["file"]
    )


Written = Callable[[], None]
# OpenBLAS has another kernel, with another order of addition, for every generation of processors; these run on all of them.
PLAIN_CORES = {"x86_64": "Prescott", "AMD64": "Prescott", "aarch64": "ARMV8"}


def generate(directory: Path, ids: Sequence[str], written: Written = lambda: None) -> None:
    """Writes the vectors of these cases into a new folder. written: called after each case. Raises RuntimeError if the process fails."""
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
            raise RuntimeError(f"the vectors could not be made:\n{errors.read()}")


def environment() -> dict[str, str]:
    """Returns the environment variables that make arithmetic independent of the processor.

    Three libraries choose code by the processor: OpenBLAS for products; NumPy for exp, tanh, sin and others, by its dispatched features;
    and the C library for exp, pow and others, by AVX2 and FMA. Their variants differ in the last bit. Several threads would divide sums.
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
    """Returns what decides the last bits in spite of that environment."""
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
