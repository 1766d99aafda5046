"""The rename table: what a layer or a variable of the left is called on the right.

A TOML file of rows `"left" = "right"`: whole names, the beginnings of names, or single parts of them; the longest that fits counts. A row
of a variable can have axes too, and sizes of letters that the shapes do not show:

    "head.weight" = {name = "head.kernel", left = "o (c h w)", right = "(h w c) o", c = 8, h = 7, w = 7}
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...reading import read_toml

FORM = '"left.name" = "right.name", or "left.name" = {name = "right.name", left = "o i", right = "i o"}'


@dataclasses.dataclass(frozen=True)
class Row:
    """The name of a variable of the left on the right, and its axes on either side. sizes: of letters that the shapes do not show."""

    name: str
    left: str = ""
    right: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rename:
    """rows: by the left's name, or a part of it."""

    rows: Mapping[str, Row] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> str:
        """Returns the name on the right; the same name if no row fits."""
        if name in self.rows:
            return self.rows[name].name
        starts = [left for left in self.rows if name.startswith(f"{left}.")]
        if starts:
            longest = max(starts, key=len)
            rest = name.removeprefix(f"{longest}.")
            return ".".join(filter(None, [self.rows[longest].name, self._parts(rest)]))
        return self._parts(name)

    def _parts(self, name: str) -> str:
        return ".".join(self.rows[part].name if part in self.rows else part for part in name.split("."))


def read(path: Path | None) -> Rename:
    """Returns the table of a file. Raises ValueError listing every row that is none."""
    if path is None:
        return Rename()
    rows, problems = {}, []
    for left, value in read_toml(path).items():
        if isinstance(value, str):
            rows[left] = Row(value)
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            rows[left] = _row(value)
        else:
            problems.append(f"{left!r}: a row must be {FORM}; got {value!r:.80}")
    if problems:
        raise ValueError(f"{path}:\n  " + "\n  ".join(problems))
    return Rename(rows)


def _row(value: Mapping[str, Any]) -> Row:
    sizes = {letter: size for letter, size in value.items() if isinstance(size, int)}
    return Row(value["name"], str(value.get("left", "")), str(value.get("right", "")), sizes)


def written(weights: list[dict[str, Any]], layers: list[dict[str, Any]]) -> str:
    """Returns the table as TOML, from the rows of a report."""
    lines = ["# layers", *(f'"{row["left"]}" = "{row["right"]}"' for row in layers if row["left"] and row["left"] != row["right"])]
    lines.append("# variables")
    for row in weights:
        if not row["right"]:
            continue
        if row.get("left_axes"):
            sizes = "".join(f", {letter} = {size}" for letter, size in row["sizes"].items() if letter != "1")
            axes = f', left = "{row["left_axes"]}", right = "{row["right_axes"]}"{sizes}'
            lines.append(f'"{row["left"]}" = {{name = "{row["right"]}"{axes}}}')
        else:
            lines.append(f'"{row["left"]}" = "{row["right"]}"')
    return "\n".join(lines) + "\n"
