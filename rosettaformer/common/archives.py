"""Sizes of zip archives, looked at before anything of them is inflated."""

import zipfile
from pathlib import Path


def require_stored(path: Path) -> None:
    """Raises ValueError if the members of an archive say more bytes than its file has: torch.save stores them as they are."""
    if (said := _said(path)) > (size := path.stat().st_size):
        raise ValueError(f"its members must be stored as they are, as torch.save does; they say {said} bytes, the file has {size}")


def require_at_most(path: Path, most: int) -> None:
    """Raises ValueError if the members of an archive say more bytes than that."""
    if (said := _said(path)) > most:
        raise ValueError(f"its members must have at most {most} bytes; they say {said}")


def _said(path: Path) -> int:
    """Returns the bytes that the members have once they are inflated, and no reader gives more: 0 if the file is no zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError):  # whatever reads the file says so
        return 0
