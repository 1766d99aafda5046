"""The evidence is built in resumable steps, and the quickly generated documents equal the output of their commands."""

import json
import sys
from pathlib import Path

import api
import evidence
import pytest
from evidence import HOUSE, STEPS, Step

# A step with two parts; the second fails until a file `ready` exists. It records what it computes.
SCRIPT = """
import sys
from pathlib import Path
from evidence import kept, write

folder, ready = map(Path, sys.argv[1:])
counted = ready.with_name("counted")
count = lambda name: counted.write_text((counted.read_text() if counted.exists() else "") + name)
kept(folder, "first", lambda: count("a"))
if not ready.exists():
    sys.exit(5)
kept(folder, "second", lambda: count("b"))
write(folder, "docs/page.md", "# Page")
"""


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(HOUSE / 'tools')!r})\n{SCRIPT}")
    command = (sys.executable, str(script), "{folder}", str(tmp_path / "ready"))
    return [Step("broken", "A step", 1, [command]), Step("fine", "Another", 1, [(sys.executable, "-c", "pass")])]


def test_a_failing_step_is_reported_the_others_go_on_and_it_resumes(steps: list[Step], tmp_path: Path) -> None:
    root = tmp_path / "evidence"
    said = dict(evidence.build(steps, root, "1"))
    assert "exit code 5" in said["broken"] and said["fine"] == "built"
    assert [path.name for path in sorted(root.iterdir())] == ["broken.part", "fine"]
    (tmp_path / "ready").touch()
    assert dict(evidence.build(steps, root, "1")) == {"broken": "built", "fine": "already built"}
    assert (tmp_path / "counted").read_text() == "ab"  # the first part was kept
    assert json.loads((root / "broken" / "made.json").read_text())["revision"] == "1"
    assert {path.name for path in (root / "broken").iterdir()} == {"docs", "log.txt", "made.json", "revision"}
    (tmp_path / "ready").unlink()
    list(evidence.build(steps, root, "2"))
    (tmp_path / "ready").touch()
    assert set(dict(evidence.build(steps, root, "3")).values()) == {"built"}
    assert (tmp_path / "counted").read_text() == "abaab"  # results of another revision are not reused


def test_an_interruption_leaves_the_finished_steps_and_an_unknown_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "run_step", interrupted)
    assert evidence.main([STEPS[0].name], tmp_path) == evidence.INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == [f"{STEPS[0].name}.part"]
    with pytest.raises(SystemExit) as refused:
        evidence.main(["wilt"], tmp_path)
    assert refused.value.code == 2 and "wild" in capsys.readouterr().err


def test_every_step_has_a_script_and_no_file_of_its_folder_is_tracked() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all((HOUSE / command[1]).is_file() for step in STEPS for command in step.commands)
    assert ".evidence/" in (HOUSE / ".gitignore").read_text().split()


def test_the_indexes_are_what_make_docs_writes() -> None:
    assert api.PAGE.read_text() == api.page(), "make docs"
