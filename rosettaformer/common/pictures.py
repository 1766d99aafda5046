"""Saves matplotlib figures; the extras `report` and `train` install matplotlib."""

from pathlib import Path
from typing import Any

from .atomic import replacing

SUFFIXES = (".png", ".svg", ".pdf")


def save(figure: Any, path: Path) -> None:
    """Writes a figure, in the format of the suffix. A failed write leaves nothing behind."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
