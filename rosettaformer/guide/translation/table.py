"""The table of topics: one row per topic, one column per framework."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from reference_numpy.suggestions import known

from ..blocks import Block, begun, blocks, prose

# column -> title, in the order of the columns
FRAMEWORKS = {"numpy": "NumPy", "pytorch": "PyTorch", "keras": "Keras", "flax": "Flax"}
# file of snippets/translation -> title of the section, in the order of the pages
SECTIONS = {
    "arrays": "Arrays",
    "dtypes": "Dtypes and precision",
    "layers": "Layers",
    "attention": "Attention",
    "initialisation": "Initial weights",
    "weights": "Weights and their layouts",
    "losses": "Losses",
    "optimisers": "Optimizers",
    "randomness": "Randomness and dropout",
    "gradients": "Gradients and transformations",
    "compilation": "Compilation",
    "data": "Data and devices",
    "checkpoints": "Checkpoints and export",
}
KINDS = ("", "default", "meaning")
PARTS = ("code", "measure", "claims")  # what is executed of a cell


@dataclass(frozen=True)
class Cell:
    """A topic in one framework.

    names: its names there, the usual one first; empty if there is no counterpart. code: code with
    the same behavior as in the other columns; its last line is an expression whose value agrees
    along the row. measure: an expression, optionally after statements, whose value the row
    compares. note: additional remarks. claims: assertions that verify the note or the row's text.
    """

    names: tuple[str, ...] = ()
    code: str = ""
    measure: str = ""
    note: str = ""
    claims: str = ""


@dataclass(frozen=True)
class Row:
    """A topic.

    given: statements that define the inputs in NumPy, converted for each framework. measured: what
    `measure` returns. kind: the kind of difference, `default` or `meaning`; without a kind, the
    columns must agree. groups: columns with equal measurements, such as `numpy pytorch | keras`,
    checked against the measurements; empty if they depend on the machine. apart: why the values of
    `code` may differ. links: names of decisions, components and known bugs.
    """

    id: str
    section: str
    title: str
    what: str = ""
    given: str = ""
    measured: str = ""
    kind: str = ""
    groups: str = ""
    apart: str = ""
    links: tuple[str, ...] = ()
    cells: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The file of its snippets."""
        return f"rosettaformer/guide/snippets/translation/{self.section}.txt"


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns all rows in order. Raises ValueError for an invalid file or a repeated id."""
    folder = resources.files("rosettaformer.guide") / "snippets" / "translation"
    found: dict[str, Row] = {}
    for section in SECTIONS:
        for block in blocks((folder / f"{section}.txt").read_text(encoding="utf-8")):
            if block.id in found:
                raise ValueError(f"{section}.txt: {block.id} is in {found[block.id].section}.txt, too")
            found[block.id] = _row(section, block)
    return tuple(found.values())


def _row(section: str, block: Block) -> Row:
    """Returns a row. `pytorch` holds that column's names, `pytorch.code` its code."""
    where = f"{section}.txt: {block.id}"
    values: dict[str, Any] = {}
    columns: dict[str, dict[str, str]] = {framework: {} for framework in FRAMEWORKS}
    for name, value in block.fields.items():
        column, _, part = name.partition(".")
        if column in columns:
            columns[column][part or "names"] = value
        else:
            values[name] = value if name == "given" else prose(value)
    known(f"{where}: a field", values, ["given", "what", "measured", "kind", "apart", "links"])
    values["kind"], _, values["groups"] = values.get("kind", "").partition(", ")
    values["links"] = tuple(values.get("links", "").split())
    cells = {framework: _cell(f"{where}.{framework}", found) for framework, found in columns.items()}
    row = Row(block.id, section, block.title, **values, cells=cells)
    if row.kind not in KINDS:
        raise ValueError(f"{where}: kind must be one of {', '.join(filter(None, KINDS))}; got {row.kind!r}")
    if bool(row.measured) != any(cell.measure for cell in cells.values()):
        raise ValueError(f"{where}: measured must say what the cells measure; got {row.measured!r}")
    return row


def _cell(where: str, values: Mapping[str, str]) -> Cell:
    """Returns a cell. Snippets that use names of `start` begin with its statements."""
    known(f"{where}: a field", values, ["names", "start", "note", *PARTS])
    names = tuple(prose(values["names"]).split("; ")) if "names" in values else ()
    start = values.get("start", "")
    snippets = {part: begun(start, values[part]) for part in PARTS if part in values}
    return Cell(names, **snippets, note=prose(values.get("note", "")))
