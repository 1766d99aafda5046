"""Runs a command in this process and captures its output and exit code."""

import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosettaformer.cli import main
from rosettaformer.common.outputs import declared

Command = Callable[[list[str]], object]


@dataclass(frozen=True)
class Outcome:
    """How a command ended, with its standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Returns the parsed lines of JSON on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


def invoke(*arguments: object, folder: Path | None = None, stdin: str | bytes = b"", command: Command = main) -> Outcome:
    """Runs `rosettaformer ARGUMENTS`, or another command with them, in the folder."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin))
    with contextlib.chdir(folder or Path.cwd()), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _standard_input(given):
        try:
            command([os.fspath(word) if isinstance(word, Path) else str(word) for word in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    found = Outcome(code, out.getvalue(), err.getvalue())
    if command is main and arguments[0] in declared():
        _require_declared(str(arguments[0]), [*arguments[1:]], folder or Path.cwd(), found)
    return found


TYPES = {"text": str, "number": int | float, "flag": bool, "list": list, "object": dict, "any": object}


def _require_declared(command: str, words: list[object], folder: Path, found: Outcome) -> None:
    """Checks the JSON that a command wrote, to a file or to standard output, against its declaration."""
    told = words[words.index("--json") + 1 :] if "--json" in words else []
    file = folder / str(told[0]) if told and str(told[0]).endswith(".json") else None
    texts = [file.read_text()] if file and file.is_file() else []
    if "--json" in words and not file and found.out.startswith("{"):
        texts = [found.out] if found.out.startswith("{\n") or found.out.count("\n") < 2 else found.out.splitlines()
    for value in map(json.loads, texts):
        fields = declared()[command]
        assert value.pop("version") == fields["version"]
        assert [*_undeclared(value, "", fields)] == []


def _undeclared(value: Any, path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the parts of a value that are undeclared or declared as another type."""
    type_, _, _ = str(fields.get(path, "")).partition(":")
    if type_:
        good = value is None if type_.endswith("?") and value is None else isinstance(value, TYPES[type_.removesuffix("?")])
        if not good:
            yield f"{path}: {type_}, got {value!r:.60}"
    elif isinstance(value, dict):
        for name, part in value.items():
            own = f"{path}.{name}" if path else name
            known = any(key == own or key.startswith((f"{own}.", f"{own}[")) for key in fields)
            yield from _undeclared(part, own if known else f"{path}.*", fields)
    elif isinstance(value, list):
        for part in value:
            yield from _undeclared(part, f"{path}[]", fields)
    else:
        yield f"{path} is not declared"


def succeeded(*arguments: object, folder: Path | None = None, stdin: str | bytes = b"") -> Outcome:
    """Returns the outcome of a command that must exit with 0."""
    found = invoke(*arguments, folder=folder, stdin=stdin)
    assert found.code == 0, found
    return found


def refused(*arguments: object, code: int = 2, folder: Path | None = None, stdin: str | bytes = b"", command: Command = main) -> str:
    """Returns the only message of a command that must exit with that code."""
    found = invoke(*arguments, folder=folder, stdin=stdin, command=command)
    assert (found.code, len(re.findall(r"\bError: ", found.err))) == (code, 1), found
    assert "Traceback" not in found.err
    return found.err


def heed_interrupts() -> None:
    """For `preexec_fn`: background processes ignore Ctrl-C, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def _standard_input(stream: io.TextIOWrapper) -> Iterator[None]:
    before, sys.stdin = sys.stdin, stream
    try:
        yield
    finally:
        sys.stdin = before


def marked(variable: str) -> list[int]:
    """Returns the other running processes that inherited the environment variable `NAME=value`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if variable.encode() in (folder / "environ").read_bytes() and state != b"Z":
                found.append(int(folder.name))
    return [process for process in found if process != os.getpid()]
