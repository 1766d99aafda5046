"""The table of topics: a row for each, with a column for each framework. Every page "from X to Y" is a pair of its columns."""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

from reference_numpy.suggestions import known

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
    "optimisers": "Optimisers",
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

    names: its names there, the usual one first; empty if the framework has no counterpart. code: the same behaviour as in the other
    columns, in this framework; its last line is an expression, whose values agree along the row. measure: an expression, after statements
    if needed, whose value the row compares. note: what else to know. claims: expressions, after statements if needed, each of which must be
    True: what the note, or the row's text, says of this framework.
    """

    names: tuple[str, ...] = ()
    code: str = ""
    measure: str = ""
    note: str = ""
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A topic.

    given: statements that set the inputs, in NumPy; every framework gets its own arrays of them. measured: what the cells' `measure` gives;
    kind: the kind of a difference in it, a `default` or a `meaning`; without a kind the columns must agree. groups: the columns with equal
    measurements, such as `numpy pytorch | keras`, refused if the measurements differ from them; empty if they depend on the machine. apart:
    why the values of `code` need not agree. links: decisions, components and defects by their names.
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
        return f"rosettaformer/guide/snippets/translation/{self.section}.toml"


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns all rows, in the order of the sections. Raises ValueError if a file does not hold rows, or two rows have the same id."""
    folder = resources.files("rosettaformer.guide") / "snippets" / "translation"
    found: dict[str, Row] = {}
    for section in SECTIONS:
        for identity, table in tomllib.loads((folder / f"{section}.toml").read_text(encoding="utf-8")).items():
            if identity in found:
                raise ValueError(f"{section}.toml: {identity} is in {found[identity].section}.toml, too")
            found[identity] = _row(section, identity, table)
    return tuple(found.values())


def _row(section: str, identity: str, table: Mapping[str, Any]) -> Row:
    where = f"{section}.toml: {identity}"
    cells = {framework: _cell(f"{where}.{framework}", table.get(framework, {})) for framework in FRAMEWORKS}
    values = {name: value for name, value in table.items() if name not in FRAMEWORKS}
    known(f"{where}: a field", values, [part.name for part in fields(Row) if part.name not in ("id", "section", "cells")])
    row = Row(identity, section, **(values | {"links": tuple(values.get("links", ()))}), cells=cells)
    if row.kind not in KINDS:
        raise ValueError(f"{where}: kind must be one of {', '.join(filter(None, KINDS))}; got {row.kind!r}")
    if bool(row.measured) != any(cell.measure for cell in cells.values()):
        raise ValueError(f"{where}: measured must say what the cells measure; got {row.measured!r}")
    return row


def _cell(where: str, table: Mapping[str, Any]) -> Cell:
    known(f"{where}: a field", table, [part.name for part in fields(Cell)])
    code, measure = (table.get(name, "").strip("\n") for name in ("code", "measure"))
    claims = tuple(claim.strip("\n") for claim in table.get("claims", ()))
    return Cell(tuple(table.get("names", ())), code, measure, table.get("note", ""), claims)
