"""Writes the tables of the families into docs/checkpoints.md and docs/checkpoints-decoders.md.

python tools/checkpoint_tables.py
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.entries import supported
from rosettaformer.checkpoints.hugging_face.family import Family

__all__ = ["PAGES", "entries", "filled", "tensors"]

PAGES = [Path(__file__).resolve().parent.parent / "docs" / name for name in ("checkpoints.md", "checkpoints-decoders.md")]


def tensors(family: Family) -> str:
    """A row for every tensor: its name, and the parameters that it holds with their axes in it."""
    rows = []
    for row in family.table:
        axis = f", side by side along axis {row.axis}" if len(row.parts) > 1 else ""
        rows.append(f"| `{row.name}` | {', '.join(f'`{part.name}` `{part.axes}`' for part in row.parts)}{axis} |")
    return "\n".join(["| tensor | parameter and its axes |", "|---|---|", *rows])


def entries(family: Family) -> str:
    """A row for every entry of config.json that is honoured, and for those that are honoured together; then those of which some values are
    supported, and those that the class does not read.
    """
    rows = [f"| `{entry.name}` | {_list(entry.fields)} | {_list(entry.words) or 'any'} |" for entry in family.entries]
    rows += [*_together(family)]
    for name in family.only:
        rows.append(f"| `{name}` | | only {' or '.join(f'`{json.dumps(value)}`' for value in supported(family, name))} |")
    rows += [f"| `{name}` | | ignored: {why} |" for name, why in family.ignored.items()]
    return "\n".join(["| entry | field | values |", "|---|---|---|", *rows])


def _together(family: Family) -> Iterator[str]:
    for joint in family.joints:
        if joint.entries:
            yield f"| {_list(joint.entries)} | {_list(joint.fields)} | {joint.note or 'any'} |"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def filled(text: str) -> str:
    """A page with the tables of now, each after the line that names it."""
    for family in FAMILIES.values():
        for kind, table in (("tensors", tensors(family)), ("entries", entries(family))):
            pattern = rf"(<!-- {kind} of {family.name} -->\n)(\|.*\n)*"
            text = re.sub(pattern, lambda found, new=table: f"{found[1]}{new}\n", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
