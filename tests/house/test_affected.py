"""The map from sources to affected tests covers the imports and selects the nearest tests first."""

import functools
import subprocess
from pathlib import Path

import pytest
from affected import AFFECTS, affected, changed, row
from import_graph import imports
from kinds import FOLDERS, every

HOUSE = Path(__file__).resolve().parents[2]
HELPERS = ("tests/support", "tests", "tests/backends", "tests/house", "tools")  # pythonpath in pyproject.toml


@functools.cache
def file_of(module: str) -> Path | None:
    """Returns the file of one of our modules."""
    places = (base / module.replace(".", "/") for base in (HOUSE, *(HOUSE / helpers for helpers in HELPERS)))
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file for file in files if file.exists()), None)


@functools.cache
def needed(file: Path) -> set[Path]:
    """Returns our files that a file imports, lazily too, with the modules it takes from them."""
    names = {name for module, taken in imports(file) for name in (module, f"{module}.{taken}")}
    return {found for name in names if (found := file_of(name))}


def reached(folder: str) -> set[str]:
    """Returns our files that the tests of a folder import, directly or through others."""
    todo = [*(HOUSE / "tests" / folder).glob("*.py")]
    seen = {*todo}
    while todo:
        new = needed(todo.pop()) - seen
        seen |= new
        todo += new
    return {file.relative_to(HOUSE).as_posix() for file in seen}


@pytest.mark.parametrize("folder", every(6, FOLDERS))
def test_what_a_test_imports_affects_it(folder: str) -> None:
    missing = {path for path in reached(folder) if folder not in row(path) and path != "tests/conftest.py"}
    assert not missing, f"AFFECTS in tests/support/affected.py must have {folder} in the rows of these files"


def test_the_map_names_what_exists() -> None:
    assert [source for source in AFFECTS if not (HOUSE / source).exists()] == []
    assert {folder for source in AFFECTS for folder in row(source)} == {*FOLDERS}


class Item:
    def __init__(self, file: str) -> None:
        self.nodeid = f"tests/{file}.py::test"


def test_the_nearest_comes_first_and_the_rest_is_not_run() -> None:
    items = [Item(file) for file in ("guide/test_a", "comparison/test_a", "reference/test_a", "comparison/test_b", "judge/test_a")]

    def chosen(*files: str, day: str = "") -> list[str]:
        return [item.nodeid for item in affected(items, day, files)]

    first, second, third = chosen("rosettaformer/comparison/report.py")
    assert (first[:16], second[:16], third) == ("tests/comparison", "tests/comparison", "tests/judge/test_a.py::test")
    assert chosen("tests/guide/test_a.py", "reference_numpy/mask.py")[:2] == [
        "tests/guide/test_a.py::test",
        "tests/reference/test_a.py::test",
    ]
    assert chosen("docs/index.md") == []
    assert len({tuple(chosen("rosettaformer/comparison/report.py", day=f"day {day}")) for day in range(20)}) == 2


def test_the_day_of_the_last_commit_counts_and_without_a_history_everything(tmp_path: Path) -> None:
    def git(*arguments: str, date: str = "") -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        given = {"GIT_COMMITTER_DATE": date} if date else None
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=given)

    assert changed(tmp_path / "none") == ("", {*AFFECTS})
    git("init")
    for name, date in (("old.py", "2020-01-01T12:00:00Z"), ("new.py", "2020-01-03T08:00:00Z"), ("newer.py", "2020-01-03T12:00:00Z")):
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "-m", name, date=date)
    assert changed(tmp_path) == ("2020-01-03", {"new.py", "newer.py"})
