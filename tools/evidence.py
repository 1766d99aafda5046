"""Builds the evidence: results of commands that run for minutes or hours. They are not committed.

    python tools/evidence.py                # every step that is not built at this revision
    python tools/evidence.py wild meshes    # these steps
    python tools/evidence.py --list         # the steps, and the revision at which each is built

A step writes to `.evidence/NAME.part`, which is renamed to `.evidence/NAME` after it succeeds. To
resume after an interruption, run the same command: it skips finished steps, and the unfinished step
reuses the results it has kept. If a step fails, the others still run. Pages that are committed are
written to the step's folder; copy them from there to publish them.
"""

import argparse
import datetime
import difflib
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosettaformer.common.atomic import write_text

HOUSE = Path(__file__).resolve().parent.parent
ROOT = HOUSE / ".evidence"
KEPT = "kept"  # folder of a step's finished parts
INTERRUPTED = 130


@dataclass(frozen=True)
class Step:
    """One step.

    title: what it shows. minutes: approximate duration on two cores. commands: run in order;
    `{folder}` is replaced by the output folder.
    """

    name: str
    title: str
    minutes: int
    commands: Sequence[Sequence[str]]


def _tool(name: str, title: str, minutes: int, script: str = "", *more: str) -> Step:
    script = script or f"{name.replace('-', '_')}.py"
    return Step(name, title, minutes, [(sys.executable, f"tools/{script}", "{folder}", *more)])


_TUTORIALS = {
    "index": 1, "port-pytorch": 3, "port-keras": 5, "port-flax": 5, "port-bert": 5, "port-llama": 5, "port-llama-flax": 8,
    "add-a-backend": 2, "add-a-component": 5,
}  # fmt: skip
STEPS = (
    _tool("keras-hub", "KerasHub's decoders compared with the reference: docs/keras-hub.md", 2, "keras_hub_page.py"),
    _tool("matrix", "The results table in docs/check.md, and its picture; needs chromium", 3),
    _tool("pictures", "The pictures of README.md and docs/guide.md; needs chromium", 5),
    _tool("published", "Published models of two libraries compared: the table in docs/compare.md and the rename tables", 5),
    _tool("session", "The console sessions of README.md, docs/porting.md and docs/like.md", 6),
    *(_tool(f"tutorial-{page}", f"Output of the tutorial {page}", minutes, "tutorials.py", page) for page, minutes in _TUTORIALS.items()),
    _tool("scaling", "Planned and measured memory and traffic of training steps", 10),
    _tool("artefacts", "Checks of our exports in every format", 15),
    _tool("sharding-faults", "Bugs injected into sharded ports: caught, named", 15),
    _tool("field-bugs", "Re-created bugs of published ports: docs/field-bugs.md", 30),
    _tool("meshes", "The results table on eleven meshes", 30),
    _tool("mutants", "Every change of the reference that the cases show, and those that no output can show", 90),
    _tool("wild", "Diagnoses of bugs written without knowledge of the catalogue", 120),
    _tool("mutation", "Diagnoses of every known bug, injected into the reference", 300),
    _tool("performance", "Time and memory compared with every peer: docs/performance.md; needs the extra bench", 300),
)


@functools.cache
def revision() -> str:
    """Returns the commit, with a hash of uncommitted changes to tracked files."""
    commit, changes = (
        subprocess.run(["git", *words], cwd=HOUSE, capture_output=True, check=True).stdout
        for words in (("rev-parse", "--short=12", "HEAD"), ("diff", "--binary", "HEAD"))
    )
    return commit.decode().strip() + (f"+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else "")


def made_by(name: str) -> str:
    """Returns the line that names this step in a committed page."""
    return f"Made by `make evidence STEP={name}` at revision {revision()}, {datetime.date.today()}."


def stamped(text: str, name: str) -> str:
    """The page with the line of `made_by` in place of its earlier one."""
    return re.sub(rf"Made by `make evidence STEP={name}` at revision [\w+]+, [\d-]+\.", made_by(name), text)


def wrapped(text: str) -> str:
    """A paragraph or a list item of a page, at most 100 columns wide."""
    text = re.sub(r" (?=[-+*] )", "\0", text[2:] if (item := text.startswith("- ")) else text)
    first, rest = ("- ", "  ") if item else ("", "")
    lines = textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def write(folder: Path, name: str, text: str) -> None:
    """Writes a file below the step's folder; `docs/check.md` is the page of that name, ready to be copied."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def kept(folder: Path, key: str, make: Callable[[], Any]) -> Any:
    """Returns `make()`, or its result as JSON if an interrupted run of this step has already kept it."""
    path = folder / KEPT / f"{key}.json"
    if not path.exists():
        write(path.parent, path.name, json.dumps(make()))
    return json.loads(path.read_text(encoding="utf-8"))


def made(step: Step, root: Path) -> dict[str, Any]:
    """The record of a built step; empty if it is not built."""
    path = root / step.name / "made.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def build(steps: Sequence[Step], root: Path, at: str) -> Iterator[tuple[str, str]]:
    """Builds the steps not built at this revision. Yields names with outcomes: "built"."""
    for step in steps:
        if made(step, root).get("revision") == at:
            yield step.name, "already built"
            continue
        folder, started = root / f"{step.name}.part", time.monotonic()
        noted = folder / "revision"  # kept results are only valid at the same revision
        if folder.exists() and not (noted.exists() and noted.read_text(encoding="utf-8") == at):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(noted, at)
        if failed := run_step(step, folder):
            yield step.name, f"failed: {failed}; see {folder / 'log.txt'}"
            continue
        shutil.rmtree(folder / KEPT, ignore_errors=True)
        about = {"title": step.title, "revision": at, "date": str(datetime.date.today()), "seconds": round(time.monotonic() - started)}
        write_text(folder / "made.json", json.dumps(about, indent=1) + "\n")
        shutil.rmtree(root / step.name, ignore_errors=True)
        folder.rename(root / step.name)
        yield step.name, "built"


def run_step(step: Step, folder: Path) -> str:
    """Runs the commands. Returns the one that fails, with its exit code."""
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        for command in step.commands:
            words = [word.replace("{folder}", str(folder)) for word in command]
            code = subprocess.run(words, cwd=HOUSE, stdout=log, stderr=subprocess.STDOUT).returncode
            if code:
                return f"exit code {code} of {' '.join(words)}"
    return ""


def _chosen(names: Sequence[str]) -> list[Step]:
    """Returns the steps of these names, or all. Raises SystemExit for an unknown name."""
    known = {step.name: step for step in STEPS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            print(f"unknown step {name}; {f'did you mean {near[0]}?' if near else 'see --list'}", file=sys.stderr)
            raise SystemExit(2)
    return [known[name] for name in names] or [*STEPS]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Builds or lists the steps. Returns 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args(arguments)
    steps = _chosen(chosen.steps)
    if chosen.list:
        for step in steps:
            print(f"{step.name:26}{step.minutes:4} min  {made(step, root).get('revision', 'not built'):22}{step.title}")
        return 0
    minutes = sum(step.minutes for step in steps if made(step, root).get("revision") != revision())
    print(f"{root}: about {minutes} minutes on two cores. To resume after an interruption, run the same command", flush=True)
    try:
        failed = False
        for name, outcome in build(steps, root, revision()):
            print(f"{name}: {outcome}", flush=True)
            failed |= outcome.startswith("failed")
    except KeyboardInterrupt:
        print("interrupted; run the same command to resume", file=sys.stderr)
        return INTERRUPTED
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
