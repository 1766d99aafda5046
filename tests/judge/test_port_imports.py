"""Port files import one module, which does not load a framework."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rosettaformer import ports

HOUSE = Path(__file__).resolve().parents[2]


HEAVY = {"torch", "tensorflow", "keras", "jax", "flax", "rich", "click", "jinja2"}
NUMERIC = {"numpy", "ml_dtypes", "safetensors", "reference_numpy"}


@pytest.mark.product
@pytest.mark.parametrize(("module", "heavy"), [("ports", HEAVY), ("pytest_plugin", HEAVY | NUMERIC)])
def test_modules_that_users_import_are_light(module: str, heavy: set[str]) -> None:
    script = f"import sys, rosettaformer.{module}; print({heavy!r} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


def test_the_module_for_port_files_names_everything_it_offers() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", str(ports.__doc__), re.MULTILINE))
    assert {*rows, "VERSION"} == {*ports.__all__}
    assert max(map(int, rows.values())) == ports.VERSION


def test_nothing_that_authors_see_has_these_names_from_elsewhere() -> None:
    folders = ("tests/ports", "tests/proposed", "rosettaformer/judge/templates", "rosettaformer/guide/snippets")
    files = [path for folder in folders for path in (HOUSE / folder).rglob("*.py") if "add_a_component" not in path.parts]
    assert len(files) > 50
    texts = [*files, HOUSE / "README.md", *(HOUSE / "docs").glob("*.md"), *(HOUSE / "rosettaformer/judge/proposals").glob("*.py")]
    other = re.compile(rf"from rosettaformer\.judge\S* import .*\b(?:{'|'.join(ports.__all__)})\b")
    assert [path.name for path in texts if other.search(path.read_text())] == []
