"""Writing that succeeds whole or leaves everything as it was."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a free path beside `path`, for a file or a folder, that takes its place when the block ends well.

    When the block, the disk or the renaming fails, the old file stands untouched and nothing new is left behind.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    if not target.parent.is_dir():
        raise ValueError(f"the folder {target.parent} does not exist")
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        _synchronise(temporary)
        _take_place(temporary, target)
    finally:
        _remove(temporary)
    _synchronise_one(target.parent)


def _take_place(temporary: Path, target: Path) -> None:
    if not (temporary.is_dir() and target.is_dir()):
        os.replace(temporary, target)
        return
    retired = temporary.with_suffix(".old")  # a folder cannot be replaced in one step
    os.replace(target, retired)
    try:
        os.replace(temporary, target)
    except BaseException:
        os.replace(retired, target)
        raise
    _remove(retired)


def _synchronise(path: Path) -> None:
    for child in path.iterdir() if path.is_dir() else ():
        _synchronise_one(child)
    _synchronise_one(path)


def _synchronise_one(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
