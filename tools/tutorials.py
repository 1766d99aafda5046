"""The tutorials of the guide, followed: files are written, changed and commands run as their pages say, step by step.

`python tools/tutorials.py [PAGE ...]` records anew what the commands print; `PAGE:BLOCK,BLOCK` those of these blocks alone.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from session import printed, steps

from examples import DECLARED, HOUSE
from rosettaformer import pages
from rosettaformer.guide import tutorials
from rosettaformer.guide.site import Page
from rosettaformer.guide.tutorials.session import FOLDER, Session, Step

SNIPPETS = HOUSE / "rosettaformer" / "guide" / FOLDER


def every_page() -> dict[str, Page]:
    """The pages by the name of their file, without its ending. What a run has measured is not on them."""
    return {Path(page.path).stem: page for page in tutorials.pages(None)}  # type: ignore[arg-type]


def all_pages() -> dict[str, Page]:
    """Those with steps."""
    return {name: page for name, page in every_page().items() if "session" in page.values}


class Steps(Session):
    """The steps of a page whose outputs may not be recorded yet, so that nothing is quoted from them."""

    def quote(self, block: str, pattern: str) -> str:
        return ""


def session(page: Page) -> Session:
    """The steps of a page, as its template takes them."""
    taken = Steps(page.values["session"].folder)
    around = {"page": page, "pages": [], "sections": {}, "about": {}, "code": lambda code: code.text, "to": lambda path: path}
    pages.environment(tutorials.__package__.rpartition(".")[0]).get_template(page.template).render(
        around | dict(page.values) | {"session": taken}
    )
    return taken


def write(step: Step, folder: Path) -> None:
    """Adds to a file of the reader, or changes some."""
    if step.kind == "add":
        file = folder / step.name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as grown:
            grown.write(step.text)
    else:
        result = subprocess.run(["git", "apply", "-"], cwd=folder, input=step.text, text=True, capture_output=True)
        assert result.returncode == 0, f"{step.name}.diff: {result.stderr}"


def pip(folder: Path) -> None:
    """A `pip` beside the folder's other commands, which installs into the folder alone and needs no network.

    What it installs is told by its metadata, which Python finds where a command is run.
    """
    script = folder / ".bin" / "pip"
    script.parent.mkdir()
    offline = "--no-deps --no-build-isolation --disable-pip-version-check --prefix .site"
    installed = "cp -r .site/lib/*/site-packages/*.dist-info ."
    script.write_text(f'#!/bin/sh\n{shlex.quote(sys.executable)} -m pip "$@" {offline} && {installed}\n')
    script.chmod(0o755)


def followed(page: Page, folder: Path, only: Collection[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Follows a page in a folder: of every block of commands the name, what the page shows, and what is printed now.

    What is said to install is compared with what the README says. A component is added to a copy of the project.
    only: the blocks that are run; all without it.
    """
    if page.path.endswith("/add-a-component.html"):
        shutil.copytree(HOUSE, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info"), dirs_exist_ok=True)
    pip(folder)
    for step in session(page).steps:
        if step.kind == "run":
            if only is None or step.name in only:
                yield step.name, step.text, "".join(f"$ {line}\n{printed(line, folder)}" for line, _ in steps(step.text))
        elif step.kind == "install":
            assert {*step.text.splitlines()} <= {*DECLARED}
        else:
            write(step, folder)


def record(name: str, folder: Path, only: Collection[str] | None = None) -> None:
    """Writes what the commands of a page print into its snippets; only: as in `followed`."""
    page = all_pages()[name]
    for block, shown, now in followed(page, folder, only):
        if now != shown:
            (SNIPPETS / page.values["session"].folder / f"{block}.console").write_text(now)
            print(f"{name}: {block}", flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or all_pages():
        with tempfile.TemporaryDirectory() as place:
            name, _, named = chosen.partition(":")
            record(name, Path(place), named.split(",") if named else None)
