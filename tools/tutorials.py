"""Follows the guide's tutorials: writes and changes files, and runs commands as the pages say.

`python tools/tutorials.py FOLDER PAGE` records a page's console output. The evidence step is `make
evidence STEP=tutorial-PAGE`.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from code_blocks import DECLARED, ran
from evidence import HOUSE, write

from rosettaformer.common import pages
from rosettaformer.guide import tutorials
from rosettaformer.guide.build import Run
from rosettaformer.guide.site import Page
from rosettaformer.guide.tutorials.session import FOLDER, Session, Step
from rosettaformer.judge.summary import Summary

SNIPPETS = HOUSE / "rosettaformer" / "guide" / FOLDER


def every_page() -> dict[str, Page]:
    """Returns the pages by file name without suffix, without pages of measurements."""
    return {Path(page.path).stem: page for page in tutorials.pages(Run(Summary([])))}


def all_pages() -> dict[str, Page]:
    """Returns the pages that have steps."""
    return {name: page for name, page in every_page().items() if "session" in page.values}


def session(page: Page) -> Session:
    """Returns a page's steps in the form its template takes."""
    taken = Session(page.values["session"].folder)
    around = {"page": page, "pages": [], "page_paths": [], "sections": {}, "about": {}}
    around |= {"code": lambda code: code.text, "to": lambda path: path}
    pages.environment(tutorials.__package__.rpartition(".")[0]).get_template(page.template).render(
        around | dict(page.values) | {"session": taken}
    )
    return taken


def change(step: Step, folder: Path) -> None:
    """Appends to a reader's file, or edits files."""
    if step.kind == "add":
        file = folder / step.name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as grown:
            grown.write(step.text)
    else:
        result = subprocess.run(["git", "apply", "-"], cwd=folder, input=step.text, text=True, capture_output=True)
        assert result.returncode == 0, f"{step.name}.diff: {result.stderr}"


def pip(folder: Path) -> None:
    """Creates a `pip` in the folder that installs only into the folder and needs no network.

    Python finds the installed metadata in the folder where a command runs.
    """
    script = folder / ".bin" / "pip"
    script.parent.mkdir()
    offline = "--no-deps --no-build-isolation --disable-pip-version-check --prefix .site"
    installed = "cp -r .site/lib/*/site-packages/*.dist-info ."
    script.write_text(f'#!/bin/sh\n{shlex.quote(sys.executable)} -m pip "$@" {offline} && {installed}\n')
    script.chmod(0o755)


def followed(page: Page, folder: Path, only: Collection[str] | None = None) -> Iterator[tuple[Step, str]]:
    """Follows a page in a folder. Yields each block of commands and its output.

    Install commands are compared with the README's. A component is added to a copy of the project.
    only: the blocks to run; by default all. Raises ValueError if a result differs from the block's;
    see `Session.run`.
    """
    if page.path.endswith("/add-a-component.html"):
        shutil.copytree(HOUSE, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info"), dirs_exist_ok=True)
    pip(folder)
    for step in session(page).steps:
        if step.kind == "run":
            if only is None or step.name in only:
                yield step, run(step, folder)
        elif step.kind == "install":
            assert {*step.text.splitlines()} <= {*DECLARED}
        else:
            change(step, folder)


def run(step: Step, folder: Path) -> str:
    """Runs a block's commands and returns the console output."""
    shown = ""
    for line in step.text.splitlines():
        result = ran(line, folder)
        shown += f"$ {line}\n" + "".join(f"{text.rstrip()}\n" for text in result.stdout.splitlines())
        if result.returncode != step.code:
            raise ValueError(f"{step.name}: exit code {result.returncode}, expected {step.code}\n{shown}{result.stderr}")
    if step.bug and not re.search(rf"\b{step.bug}\b", shown):
        raise ValueError(f"{step.name}: {step.bug} is not named\n{shown}")
    return shown


def record(folder: Path, name: str) -> None:
    """Writes a page's console output to `BLOCK.console` files."""
    with tempfile.TemporaryDirectory() as place:
        for step, console in followed(all_pages()[name], Path(place)):
            print(step.name, flush=True)
            write(folder, f"{step.name}.console", console)


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2])
