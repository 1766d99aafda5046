"""Checks the sizes of zip archives before anything in them is decompressed."""

import zipfile
from pathlib import Path


def require_stored(path: Path) -> None:
    """Raises ValueError if an archive's members claim more bytes than its file has."""
    if (said := _said(path)) > (size := path.stat().st_size):
        raise ValueError(f"its members must be uncompressed, as torch.save writes them; they claim {said} bytes, the file has {size}")


def require_at_most(path: Path, most: int) -> None:
    """Raises ValueError if an archive's members claim more than `most` bytes."""
    if (said := _said(path)) > most:
        raise ValueError(f"its members must have at most {most} bytes; they claim {said}")


def _said(path: Path) -> int:
    """Returns the total decompressed size, which no reader exceeds; 0 if it is no zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError):  # the file's reader reports it
        return 0
