"""What files of ports import: one home that stays, and old paths that work and are said in one line."""

import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess

from reference_numpy import preset
from rosettaformer import ports
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.ports.old_paths import OLD, old_paths
from rosettaformer.conformance.runner import open_worker

HOUSE = Path(__file__).resolve().parents[2]
CASE = Case("one", "layer_norm", preset("tiny"), {"x_btd": np.ones((1, 2, 12))})
PAIRS = [(module, name) for module, names in OLD.items() for name in names]


def _port(folder: Path, module: str, name: str) -> str:
    """A port that imports the name from there."""
    path = folder / f"{module.replace('.', '_')}_{name}.py"
    answer = "raise NotCovered('no')" if name == "NotCovered" else f"return case.inputs['x_btd'] * bool({name})"
    path.write_text(f"from {module} import {name}\n\n\ndef layer_norm(case):\n    {answer}\n")
    return str(path)


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_an_old_path_works_and_is_said(module: str, name: str, tmp_path: Path) -> None:
    """The answers are those of a port that has the new path."""
    worker = InProcess(_port(tmp_path, module, name))
    assert worker.greeting[1]["notice"].endswith(f".py: {module} is an old path; write `from rosettaformer.ports import {name}`")
    assert worker.ask(CASE, 60)[0] == ("not covered" if name == "NotCovered" else "outputs")


@pytest.mark.product
def test_it_is_said_once_however_often_the_port_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = _port(tmp_path, *PAIRS[0])
    for _ in range(2):
        with contextlib.closing(open_worker(port, threads=1)) as worker:
            assert worker.ask(CASE, 60)[0] in ("not covered", "outputs")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{old_paths(port)}\n")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import rosettaformer.conformance.ports.port as port", "NotCovered, Unsupported"),
        ("from rosettaformer.conformance.ports import names", "Names"),
        ("def f():\n    from rosettaformer.conformance.port import NotCovered as N", "NotCovered"),
        ("from rosettaformer.ports import Case, Names, NotCovered, Unsupported", ""),
        ("from rosettaformer.conformance.ports.port import PORTS", ""),
        ("this is no Python", ""),
    ],
)
def test_every_way_to_import_an_old_path_is_seen(code: str, names: str, tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(code)
    assert old_paths(str(tmp_path / "port.py")).partition("write ")[2] == (f"`from rosettaformer.ports import {names}`" if names else "")


@pytest.mark.product
def test_nothing_that_authors_see_has_an_old_path_and_the_home_has_what_they_had() -> None:
    heavy = ("torch", "tensorflow", "keras", "jax", "flax", "rich", "click", "jinja2")
    script = f"import sys, rosettaformer.ports; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", str(ports.__doc__), re.MULTILINE))
    assert {*rows, "VERSION"} == {*ports.__all__} == {name for _, name in PAIRS} | {"VERSION"}
    assert max(map(int, rows.values())) == ports.VERSION
    for module, name in PAIRS:
        assert getattr(importlib.import_module(module), name) is getattr(ports, name)
    folders = ("tests/ports", "tests/proposed", "rosettaformer/templates", "rosettaformer/guide/snippets")
    files = [path for folder in folders for path in (HOUSE / folder).rglob("*.py")]
    assert len(files) > 50
    assert [path.name for path in files if old_paths(str(path))] == []
    texts = [HOUSE / "README.md", *(HOUSE / "docs").glob("*.md"), *(HOUSE / "rosettaformer" / "proposals").glob("*.py")]
    old = re.compile(rf"(?:from|import) (?:{'|'.join(map(re.escape, OLD))})\b")
    assert [path.name for path in texts if old.search(path.read_text())] == []
