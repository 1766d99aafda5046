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
        for file in temporary.iterdir() if temporary.is_dir() else (temporary,):
            with file.open("rb+") as written:  # on the disk before it is named
                os.fsync(written.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk, where the system can."""
    with contextlib.suppress(OSError):  # some file systems, and Windows, have no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
