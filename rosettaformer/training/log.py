"""The log of a run: a JSON object a line, for every step and every validation."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..checkpoints.replacing import replacing

__all__ = ["Log", "read"]


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
    """The entries of a log; a line that is none, as a kill or a full disk may leave at its end, is passed over."""
    return [entry for _, entry in _lines(path)]


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    found = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and line.endswith(b"\n"):
            found.append((line, entry))
    return found
