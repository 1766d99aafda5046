"""Reads files of blocks, which contain prose and code without quotation marks.

A block starts with `[id]` and an optional title. `field: value` is a field; a longer value
continues on the next lines, indented by four spaces. Lines that start with `#` are comments.
"""

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple


class Block(NamedTuple):
    """A block of a file. fields: name -> text without the indentation."""

    id: str
    title: str
    fields: Mapping[str, str]


def blocks(text: str, first: str = "") -> list[Block]:
    """Returns the blocks of a text. Raises ValueError if a line belongs to no block.

    first: a field that starts another block with the same id, if it is there already.
    """
    found: list[tuple[str, str, dict[str, list[str]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = found[-1][2] if found else {}
        if head := re.fullmatch(r"\[(\S+)\] ?(.*)", line):
            found.append((head[1], head[2], {}))
        elif found and (field := re.fullmatch(r"([\w.]+):(?: (.*))?", line)) and (field[1] not in fields or field[1] == first):
            if field[1] in fields:
                found.append((*found[-1][:2], {}))
            found[-1][2][field[1]] = [field[2] or ""]
        elif fields and (not line or line.startswith("    ")):
            fields[[*fields][-1]].append(line[4:])
        elif line and not line.startswith("#"):
            raise ValueError(f"line {number} belongs to no block or repeats a field: {line}")
    return [Block(identity, title, _joined(fields)) for identity, title, fields in found]


def _joined(fields: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: "\n".join(lines).strip("\n") for name, lines in fields.items()}


def prose(value: str) -> str:
    """Joins a value of several lines into one line."""
    return " ".join(value.split())


def begun(start: str, code: str) -> str:
    """Prepends the statements of `start` if the code uses a name they define."""
    return f"{start}\n{code}" if _bound(start) & _read(code) else code


def _bound(code: str) -> set[str]:
    nodes = [*ast.walk(ast.parse(code))]
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return variables | imported | defined


def _read(code: str) -> set[str]:
    names = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}
