"""Measured tables as data: a JSON file for each, with the command and the environment that gave its numbers."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..atomic import write_text


def key(section: str) -> str:
    """What a section is called, without the sizes."""
    return re.split(r"[:\n]", section.removeprefix("## "))[0]


def parsed(section: str) -> dict[str, Any]:
    """A section of the Markdown that `report.markdown` and `first.markdown` write, as plain data; cells stay as they are printed."""
    title, how, table, note, *rest = section.strip().split("\n\n")
    columns, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    return {
        "name": key(section),
        "title": title.removeprefix("## "),
        "measured": how.removesuffix(":"),
        "columns": columns,
        "rows": rows,
        "note": note,
        "environment": [line.removeprefix("- ") for line in "\n".join(rest).splitlines()],
    }


def write(folder: Path, sections: Iterable[str]) -> None:
    """Writes each section into its own file of the folder, whole; the other files stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in map(parsed, sections):
        name = "-".join(re.findall(r"\w+", found["name"].lower()))
        write_text(folder / f"{name}.json", _lines(found))


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line for each field, each row and each line of the environment."""
    fields = []
    for name, value in found.items():
        text = json.dumps(value, ensure_ascii=False)
        if name in ("rows", "environment"):
            text = "[" + ",".join(f"\n  {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n ]"
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"
