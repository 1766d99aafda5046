"""Renders statements and definitions for a page."""

import ast
import re
from dataclasses import dataclass
from typing import Any

from ..code import Code, lines
from .modules import read
from .sources import Block, Piece


@dataclass(frozen=True)
class Cell:
    """A statement: lines as (indentation width, HTML); opens: whether it starts a definition."""

    piece: Piece
    lines: tuple[tuple[int, Any], ...]
    opens: bool

    @property
    def origin(self) -> str:
        """The file, and the first line that is shown."""
        return f"{self.piece.symbol.path}:{self.piece.last - len(self.lines) + 1}"


def cell_of(piece: Piece | None) -> Cell | None:
    """Returns a statement as a cell."""
    if piece is None:
        return None
    file = read(piece.symbol.package, piece.symbol.module)
    shown = range(piece.last - len(piece.text.split("\n")), piece.last)
    made = tuple((len(file.lines[i]) - len(file.lines[i].lstrip()), unindented(lines(file.text)[i])) for i in shown)
    return Cell(piece, made, isinstance(piece.node, ast.FunctionDef | ast.ClassDef))


def unindented(line: Any) -> Any:
    """Returns a line of HTML without its leading spaces."""
    return type(line)(re.sub(r"^(<span class=\"\w+\">)? +(?(1)(</span>)?)", lambda found: "" if found[2] else found[1] or "", str(line)))


def code_of(block: Block) -> Code:
    """Returns a definition as a block of code."""
    text = "\n".join(line for piece in block.pieces for line in piece.lines)
    return Code(text, block.symbol.path, caption=f"{block.symbol.path}:{block.lines[0]}")
