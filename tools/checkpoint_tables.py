"""Writes the tables of the families into docs/checkpoints.md, -decoders.md and -encoders.md.

A family that no page has gets a section of its own at the end of the page of its kind.

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

PAGES = [
    Path(__file__).resolve().parent.parent / "docs" / name
    for name in ("checkpoints.md", "checkpoints-decoders.md", "checkpoints-encoders.md")
]


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
    rows = []
    for entry in family.entries:
        values = "; ".join(filter(None, (_list(entry.words) or "any", entry.note)))
        rows.append(f"| `{entry.name}` | {_list(entry.fields)} | {values} |")
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


def with_sections(texts: list[str]) -> list[str]:
    """The pages with a section for every family, of decoders on the second and of encoders on the third."""
    texts = list(texts)
    for family in FAMILIES.values():
        marks = [f"<!-- {kind} of {family.name} -->\n" for kind in ("tensors", "entries")]
        if not any(marks[0] in text for text in texts):
            page = 1 if family.fixed.get("encoder_layers") == 0 else 2
            texts[page] = f"{texts[page].rstrip()}\n\n## {family.name}\n\n{marks[0]}\n{marks[1]}"
    return texts


if __name__ == "__main__":
    for path, text in zip(PAGES, with_sections([page.read_text() for page in PAGES]), strict=True):
        path.write_text(filled(text))
