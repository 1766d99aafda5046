"""Saves pictures drawn by matplotlib, which the extras `report` and `train` install."""

from pathlib import Path
from typing import Any

from .atomic import replacing

SUFFIXES = (".png", ".svg", ".pdf")


def save(figure: Any, path: Path) -> None:
    """Writes the figure into a file whose suffix names the format, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
