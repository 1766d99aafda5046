"""The defects of the catalogue as edits of our own ports: in each framework the lines that are right, and the mistake in their place.

The `[[ID.framework]]` tables of a family's file have `file`, `right` and `wrong`. `right` occurs once in that file of the port. The tests
apply the edits to a copy of the port and compare what it gives with the reference with the defect in it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .alteration import FRAMEWORKS
from .records import families


@dataclass(frozen=True)
class Edit:
    """The lines of a file of a port's package, right and wrong."""

    file: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Mistake:
    """A defect in one framework.

    variant: which of the defect's variants it is, by title; empty for the defect itself. absent: why the framework has no place to make
    it; then there are no edits. differs: why the port with the edits is wrong otherwise than the reference with the defect in it is; then
    it is only required that a case refuses it. packs: it is in what packs real tokens, which a port does to the small batches of the cases
    for the judge alone; every other mistake is made where all positions have rows.
    """

    edits: Sequence[Edit] = ()
    variant: str = ""
    absent: str = ""
    differs: str = ""
    packs: bool = False


@functools.cache
def all_mistakes() -> Mapping[str, Mapping[str, Mistake]]:
    """The mistakes by the defect's id and the framework."""
    return {
        id_: {framework: _mistake(table[framework]) for framework in FRAMEWORKS if framework in table}
        for family in families().values()
        for id_, table in family.items()
    }


def _mistake(tables: Sequence[Mapping[str, Any]]) -> Mistake:
    notes = {name: note for table in tables for name, note in table.items() if name in ("variant", "absent", "differs", "packs")}
    edits = [Edit(table["file"], *(table[side].removeprefix("\n") for side in ("right", "wrong"))) for table in tables if "file" in table]
    return Mistake(edits, **notes)


def edited(edits: Sequence[Edit], package: Path) -> dict[str, str]:
    """The edited texts by file. Raises ValueError unless the right lines occur exactly once."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or (package / edit.file).read_text(encoding="utf-8")
        if (count := text.count(edit.right)) != 1:
            raise ValueError(f"{package.name}/{edit.file} must hold these lines once; it holds them {count} times:\n{edit.right}")
        texts[edit.file] = text.replace(edit.right, edit.wrong)
    return texts
