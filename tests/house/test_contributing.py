"""CONTRIBUTING is complete: following its example on a copy of the packages gives every port the new activation."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
TEXT = (HOUSE / "CONTRIBUTING.md").read_text()
PACKAGES = ("reference_numpy", "impl_torch", "impl_tf", "impl_jax", "rosettaformer")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(HOUSE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for difference in re.findall(r"^```diff\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=folder, input=difference, text=True, check=True)
    return folder


@pytest.mark.conformance
def test_its_example_conforms_in_every_port(copy: Path) -> None:
    for framework in ("torch", "tensorflow", "flax"):
        pytest.importorskip(framework)
    (line,) = re.findall(r"^    rosettaformer (check .*)$", TEXT, re.MULTILINE)
    result = subprocess.run([sys.executable, "-m", "rosettaformer", *line.split()], cwd=copy, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^PASSED: 24 comparisons \(suite", result.stdout, re.MULTILINE)  # 2 components, 4 dtypes, 3 ports


def test_every_place_that_it_names_exists() -> None:
    places = {name for name in re.findall(r"`([\w/]+(?:/|\.py))`", TEXT) if "/" in name.rstrip("/") or name.startswith("reference_numpy")}
    assert len(places) > 5
    assert [place for place in places if not (HOUSE / place).exists()] == []
