"""CONTRIBUTING's table of guarantees names every test file, and no file that does not exist."""

import re
from fnmatch import fnmatch
from pathlib import Path

from cpu_seconds import SHARES

TESTS = Path(__file__).parents[1]


def test_the_tables_of_guarantees_and_seconds_name_every_file_and_folder_of_tests() -> None:
    rows = (TESTS.parent / "CONTRIBUTING.md").read_text().partition("## Which guarantee is where")[2].splitlines()
    named = [name for row in rows if row.startswith("|") for name in re.findall(r"`(test_[\w*]+)`", row.split("|")[2])]
    files = sorted(path.stem for path in TESTS.rglob("test_*.py"))
    assert [file for file in files if not any(fnmatch(file, name) for name in named)] == []
    assert [name for name in named if not any(fnmatch(file, name) for file in files)] == []
    assert SHARES.keys() == {path.parent.name for path in TESTS.rglob("test_*.py")} | {"start and collection"}
    assert sum(SHARES.values()) == 1100
