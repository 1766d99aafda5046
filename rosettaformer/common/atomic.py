"""Writes files and folders as a whole, or leaves everything unchanged."""

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}


def require(path: Path, folder: bool = False) -> None:
    """Raises ValueError, before any work, if nothing can be written to `path`.

    Its folder must exist, and it must not be a device, a socket or, unless `folder`, a folder.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if (found := _KINDS.get(kind)) and not (folder and kind == stat.S_IFDIR):
            raise ValueError(f"{path} must be a file; it is {found}")
    for parent in (path.parent, _target(path).parent):
        if not parent.is_dir():
            raise ValueError(f"the folder {parent} does not exist")


@contextlib.contextmanager
def replacing(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yields a free path for a file or a new folder, which replaces `path` if the block succeeds.

    folder: `path` may be a folder, which is replaced with all its content. If the block, the disk
    or the renaming fails, the old file stays unchanged and nothing new remains. Links stay links,
    and files keep their permissions. Character devices, named pipes and this process's standard
    output and error are not replaced: the content is written into them. Raises ValueError like
    `require`.
    """
    require(path, folder)
    if (stream := _stream(path)) is None:
        with _renamed(_target(path)) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as aside:
        yield Path(aside, "content")
        with Path(aside, "content").open("rb") as content, open(stream, "wb") as into:
            shutil.copyfileobj(content, into)


def write_text(path: Path, text: str) -> None:
    """Replaces a file's content with this text, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _stream(path: Path) -> Path | int | None:
    """Returns the descriptor or path to write into; None for files and new paths."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    for standard, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        with contextlib.suppress(OSError):  # closed
            if os.path.samestat(status, os.fstat(descriptor)):
                standard.flush()
                return os.dup(descriptor)
    return None if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else path


@contextlib.contextmanager
def _renamed(target: Path) -> Iterator[Path]:
    temporary = _hidden(target)
    try:
        yield temporary
        publish(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, target: Path) -> None:
    """Flushes a file or folder to the disk, then renames it, replacing what has that name."""
    for file in [path for path in temporary.rglob("*") if path.is_file()] if temporary.is_dir() else [temporary]:
        with file.open("rb+") as written:
            os.fsync(written.fileno())
    if target.exists():
        shutil.copymode(target, temporary)
    with _aside(target):
        os.replace(temporary, target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[None]:
    """Moves a target folder away; removes it after the block, or restores it if the block fails."""
    if not target.is_dir():
        yield
        return
    old = _hidden(target)
    target.rename(old)
    try:
        yield
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.tmp")


def _sync_folder(folder: Path) -> None:
    """Flushes a folder's list of names to the disk, where supported."""
    with contextlib.suppress(OSError):  # some file systems, and Windows, cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
