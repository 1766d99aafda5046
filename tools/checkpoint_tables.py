"""Writes the tables of the families into docs/checkpoints.md.

python tools/checkpoint_tables.py
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.family import Family

__all__ = ["PAGE", "entries", "filled", "tensors"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md"


def tensors(family: Family) -> str:
    """A row for every tensor: its name, and the parameters that it holds with their axes in it."""
    rows = []
    for row in family.table:
        axis = f", side by side along axis {row.axis}" if len(row.parts) > 1 else ""
        rows.append(f"| `{row.name}` | {', '.join(f'`{part.name}` `{part.axes}`' for part in row.parts)}{axis} |")
    return "\n".join(["| tensor | parameter and its axes |", "|---|---|", *rows])


def entries(family: Family) -> str:
    """A row for every entry of config.json that is honoured, then those of which one value is supported."""
    rows = [f"| `{entry.name}` | {_list(entry.fields)} | {_list(entry.words) or 'any'} |" for entry in family.entries]
    rows += [f"| `{name}` | | only `{json.dumps(value)}` |" for name, value in family.only.items()]
    return "\n".join(["| entry | field | values |", "|---|---|---|", *rows])


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def filled(text: str) -> str:
    """The page with the tables of now, each after the line that names it."""
    for family in FAMILIES.values():
        for kind, table in (("tensors", tensors(family)), ("entries", entries(family))):
            pattern = rf"(<!-- {kind} of {family.name} -->\n)(\|.*\n)*"
            text, count = re.subn(pattern, lambda found, new=table: f"{found[1]}{new}\n", text)
            assert count == 1, (kind, family.name)
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
