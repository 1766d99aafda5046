"""What CONTRIBUTING says to do is enough: its example is done on a copy of the packages, and every port has the new activation."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import in_part, part

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


@pytest.mark.second
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


def test_every_test_is_in_one_part_with_all_its_parameters() -> None:
    names = [f"tests/a/test_{file}.py::test_{name}" for file in range(20) for name in range(10)]
    parts = [{name for name in names if in_part(name, number, 3)} for number in (1, 2, 3)]
    assert sum(map(len, parts)) == len(names) and set.union(*parts) == {*names}
    assert all(len(part) > len(names) / 5 for part in parts)
    assert all(in_part(f"{name}[float32-::]", number, 3) == (name in parts[number - 1]) for name in names for number in (1, 2, 3))
    assert part("2/3") == (2, 3)
    for wrong in ("0/3", "4/3", "1", "1/0", "-1/3"):
        with pytest.raises(ValueError, match="such as 1/3"):
            part(wrong)
