"""Fresh environments that hold the direct and indirect requirements of an extra and nothing else, linked from installed packages."""

import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

HOUSE = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
PACKAGES = ("reference_numpy", "impl_torch", "impl_tf", "impl_jax", "rosettaformer")


class Environment:
    """A virtual environment with this checkout and only the distributions that an extra requires.

    folder: must be new; commands run in its `work`. Raises PackageNotFoundError if a distribution is not installed here.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.work = folder / "work"
        self.work.mkdir()
        self.python = folder / "bin" / "python"
        self._site = next(folder.glob("lib/python*/site-packages"))
        for package in PACKAGES:
            (self._site / package).symlink_to(HOUSE / package)
        _write_metadata(self._site / f"rosettaformer-{PROJECT['version']}.dist-info")
        for found in closure(extra):
            self._link(found)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m ARGUMENTS` in the environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        variables = kept | {"MPLCONFIGDIR": str(self.work.parent / "matplotlib")}
        command = [self.python, "-m", *arguments]
        return subprocess.run(command, cwd=self.work, env=variables, capture_output=True, text=True, timeout=300)

    def _link(self, found: Distribution) -> None:
        for top in {file.parts[0]: file for file in found.files or () if file.parts[0] != "__pycache__"}.values():
            if top.parts[0] == "..":
                if top.parent.name == "bin":  # programs that are not Python, such as ruff
                    (self.python.parent / top.name).symlink_to(top.locate())
            else:
                (self._site / top.parts[0]).symlink_to(found.locate_file(top.parts[0]))


def closure(extra: str) -> list[Distribution]:
    """Returns the installed distributions that rosettaformer[extra] requires, according to pyproject.toml and package metadata."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("rosettaformer", part) for part in {"", extra}]
    while waiting:
        name, part = waiting.pop()
        if (name, part) in seen:
            continue
        seen.add((name, part))
        if name != "rosettaformer":
            found[name] = distribution(name)
        for text in _requirements(name, part):
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": part}):
                waiting += [(re.sub(r"[-_.]+", "-", needed.name).lower(), each) for each in ("", *needed.extras)]
    return list(found.values())


def _requirements(name: str, extra: str) -> Iterable[str]:
    if name == "rosettaformer":
        return PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return distribution(name).requires or ()


def _write_metadata(folder: Path) -> None:
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rosettaformer\nVersion: {PROJECT['version']}\n")
    points = "\n".join(f"{name} = {value}" for name, value in PROJECT["entry-points"]["pytest11"].items())
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")


def missing(extra: str) -> str:
    """Returns a distribution of the extra that is not installed here, or an empty string."""
    try:
        closure(extra)
    except PackageNotFoundError as error:
        return str(error.name)
    return ""
