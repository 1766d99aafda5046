"""The steps of a tutorial: files that grow, changes, commands and their output."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from ..code import Code

PACKAGE = __package__.rpartition(".")[0]
FOLDER = "snippets/tutorials"  # of that package
LANGUAGES = {"py": "python", "toml": "toml"}


class Step(NamedTuple):
    """One step: `add` text to the end of a file, `change` files by a diff, `run` commands, or
    `install` the project.

    name: the file that grows, otherwise the snippet. text: the added text, the diff, or the
    commands. code: the exit code of the commands. bug: the known bug that their diagnosis names.
    """

    kind: str
    name: str
    text: str
    code: int = 0
    bug: str = ""


class Session:
    """The steps of one page.

    The template calls them in order, so that the page shows exactly what runs.

    folder: the page's snippets, in the tutorials' folder. repaired: `file#region` with a deliberate
    bug -> the steps that fix it, as in `Code`. consoles: folder of recorded outputs
    `BLOCK.console`; it may be missing.
    """

    def __init__(
        self, folder: str, repaired: Mapping[str, tuple[tuple[str, str], ...]] | None = None, consoles: Path | None = None
    ) -> None:
        self.folder = folder
        self._repaired = repaired or {}
        self._consoles = consoles
        self.steps: list[Step] = []

    @cached_property
    def blocks(self) -> Mapping[str, Step]:
        """Command blocks: tables `passes` (exit code 0), `fails` (1), `names.ID` (1)."""
        table = tomllib.loads(self._read("commands.toml"))
        kinds = [(0, "", table.get("passes", {})), (1, "", table.get("fails", {}))]
        kinds += [(1, bug, blocks) for bug, blocks in table.get("names", {}).items()]
        return {name: Step("run", name, text, code, bug) for code, bug, blocks in kinds for name, text in blocks.items()}

    @property
    def recorded(self) -> bool:
        """Whether all blocks have recorded outputs of the same commands."""
        return all(map(self._console, self.blocks))

    def _console(self, name: str) -> str:
        """Returns the recorded output of a block; empty if its commands have none."""
        file = self._consoles / f"{name}.console" if self._consoles else None
        text = file.read_text(encoding="utf-8") if file and file.is_file() else ""
        return text if all(f"$ {line}\n" in text for line in self.blocks[name].text.splitlines()) else ""

    def add(self, file: str, region: str = "", caption: str = "") -> Code:
        """Appends a file that the reader writes, or a region of it."""
        text = self._read(file)
        text = regions(text)[region] if region else text
        grown = any(step.kind == "add" and step.name == file for step in self.steps)
        self.steps.append(Step("add", file, text))
        code = self._code(file, text, LANGUAGES.get(file.rpartition(".")[2], "text"), caption or (f"{file}, continued" if grown else file))
        return replace(code, repaired=self._repaired.get(f"{file}#{region}", ()))

    def change(self, name: str, caption: str = "") -> Code:
        """Applies `name.diff` to the reader's files."""
        text = self._read(f"{name}.diff")
        self.steps.append(Step("change", name, text))
        return self._code(f"{name}.diff", text, "diff", caption)

    def run(self, name: str) -> Code:
        """Shows the commands of a block, with their recorded output if there is one."""
        step = self.blocks[name]
        self.steps.append(step)
        commands = "".join(f"$ {line}\n" for line in step.text.splitlines())
        return self._code(f"commands.toml#{name}", self._console(name) or commands, "console", "")

    def final(self, file: str) -> Code:
        """Shows a reader's file after all steps. Raises ValueError if a change fails."""
        text = ""
        for step in self.steps:
            if step.kind == "add" and step.name == file:
                text += step.text
            elif step.kind == "change":
                text = changed(text, step.text, file)
        return self._code(f"{file}#final", text, LANGUAGES.get(file.rpartition(".")[2], "text"), file)

    def install(self, file: str) -> Code:
        """Shows installation commands, which are not run."""
        text = self._read(file)
        self.steps.append(Step("install", file, text))
        return self._code(file, text, "sh", "")

    def _read(self, file: str) -> str:
        return resources.files(PACKAGE).joinpath(FOLDER, self.folder, file).read_text(encoding="utf-8")

    def _code(self, file: str, text: str, language: str, caption: str) -> Code:
        return Code(text.strip("\n") + "\n", f"rosettaformer/guide/{FOLDER}/{self.folder}/{file}", language, caption)


def changed(text: str, diff: str, file: str) -> str:
    """Applies a diff to the file. Raises ValueError unless each hunk matches once."""
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        if part.partition("\n")[0] != f"a/{file}":
            continue
        for hunk in re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]:
            lines = [line or " " for line in hunk.splitlines()]
            before, after = ("".join(line[1:] + "\n" for line in lines if line[0] in f" {sign}") for sign in "-+")
            if text.count(before) != 1:
                raise ValueError(f"a change must find its lines once in {file}; got {text.count(before)} times:\n{before}")
            text = text.replace(before, after)
    return text


def regions(text: str) -> Mapping[str, str]:
    """Returns the parts of a file that start with a line `# region NAME`, without that line."""
    parts = re.split(r"^ *# region (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
