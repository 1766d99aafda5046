"""docs/checkpoints.md has the tables of the families as they are. `python tests/house/test_checkpoint_page.py` writes them anew."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.family import Family

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"


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
    rows += [f"| `{name}` | | `{json.dumps(value)}` alone |" for name, value in family.only.items()]
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


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_page_has_the_table_of_names_and_that_of_entries(family: Family) -> None:
    text = PAGE.read_text()
    assert tensors(family) in text
    assert entries(family) in text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
