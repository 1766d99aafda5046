"""The log of a run: a JSON object a line, for every step and every validation."""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reference_numpy.fields import is_number

from ..checkpoints.reading import parse_json
from ..checkpoints.replacing import replacing
from . import schema

__all__ = ["Log", "read"]

LONGEST = 10_000  # bytes of an entry
_TEXTS: schema.Table = {
    "event": schema.choice("start", "step", "validation", "test"), "backend": schema.text(100), "checkpoint": schema.text(100),
}  # fmt: skip
_NUMBER: schema.Check = (lambda value: is_number(value) or isinstance(value, float), "a number")  # a loss may be NaN


class Log:
    """Appends to the log in a file, from after a step on: what it holds of later steps, which will be done again, is cut off first."""

    def __init__(self, path: Path, steps: int) -> None:
        if path.exists():
            with replacing(path) as temporary:
                temporary.write_bytes(b"".join(line for line, entry in _lines(path) if entry["step"] <= steps))
        self._file = path.open("ab", buffering=0)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry, which names its step. Raises OSError where the disk takes only a part of it."""
        line = json.dumps(dict(entry)).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def sync(self) -> None:
        """Puts the entries on the disk, so that no checkpoint outlives the log of its steps."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; a last line without an end, as a kill or a full disk may leave it, is passed over.

    Raises ValueError naming any other line that is none.
    """
    return [entry for _, entry in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) <= LONGEST and not line.endswith(b"\n"):
                return
            try:
                yield line, _entry(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error} (the line may be removed)") from None


def _entry(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise ValueError(f"an entry must have at most {LONGEST} bytes; it has more")
    entry = parse_json(line)
    numbers = {name: _NUMBER for name in entry if name not in _TEXTS} if isinstance(entry, dict) else {}
    texts = {name: check for name, check in _TEXTS.items() if name == "event" or (isinstance(entry, dict) and name in entry)}
    if problems := schema.problems(entry, {**numbers, **texts, "step": schema.integer()}):
        raise ValueError("; ".join(problems[:3]))
    return entry
