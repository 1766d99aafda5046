"""Writes the tables of the Hugging Face families.

Run it with `make evidence STEP=checkpoints`.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from evidence import write

from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.files.checkpoints.hugging_face.entries import supported
from rosettaformer.files.checkpoints.hugging_face.family import Family

HEAD = """For each family: the parameters in each tensor, with their axes, and the entries of `config.json` that
set config fields. An entry that is not listed is rejected if it has a value. docs/checkpoints.md
describes how checkpoints are read."""


def tensors(family: Family) -> str:
    """Yields a row for each tensor: its name, and its parameters with their axes."""
    rows = []
    for row in family.table:
        axis = f", concatenated along axis {row.axis}" if len(row.parts) > 1 else ""
        rows.append(f"| `{row.name}` | {', '.join(f'`{part.name}` `{part.axes}`' for part in row.parts)}{axis} |")
    return "\n".join(["| tensor | parameter and its axes |", "|---|---|", *rows])


def entries(family: Family) -> str:
    """Yields rows for supported, jointly supported, restricted and ignored entries of config.json."""
    rows = []
    for entry in family.entries:
        values = "; ".join(filter(None, (_list(entry.words) or "any", entry.note)))
        rows.append(f"| `{entry.name}` | {_list(entry.fields)} | {values} |")
    for joint in filter(lambda joint: joint.entries, family.joints):
        rows.append(f"| {_list(joint.entries)} | {_list(joint.fields)} | {joint.note or 'any'} |")
    for name in family.only:
        rows.append(f"| `{name}` | | only {' or '.join(f'`{json.dumps(value)}`' for value in supported(family, name))} |")
    rows += [f"| `{name}` | | ignored: {why} |" for name, why in family.ignored.items()]
    return "\n".join(["| entry | field | values |", "|---|---|---|", *rows])


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """Returns a section for each family."""
    parts = ["# Tensors and entries of the Hugging Face families", HEAD]
    for name, family in FAMILIES.items():
        parts += [f"## {family.name}: `{name}`", tensors(family), entries(family)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]), "checkpoints.md", page())
