"""The glossary: terms of the pages, with links to where they are used."""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import TYPE_CHECKING

from reference_numpy.suggestions import known

from .site import GLOSSARY, Page, slug

if TYPE_CHECKING:
    from .build import Run


@dataclass(frozen=True)
class Term:
    """A term. text: its definition; also: synonyms; see: link text -> page."""

    name: str
    text: str
    see: Mapping[str, str]
    also: tuple[str, ...] = ()


def pages(run: "Run") -> Iterator[Page]:
    """Yields the page."""
    names = tuple((word, f"#{slug(term.name)}") for term in terms() for word in (term.name, *term.also))
    letters = {term.name[0].upper(): slug(term.name) for term in reversed(terms())}
    values = {"terms": terms(), "letters": dict(reversed(letters.items()))}
    yield Page(GLOSSARY, "Glossary", "glossary.html.jinja", values, "The terms of these pages, in a sentence or two each.", names)


@functools.cache
def terms() -> tuple[Term, ...]:
    """Returns all terms in order. Raises ValueError if a table has an unknown field."""
    tables = tomllib.loads((resources.files(__package__) / "glossary.toml").read_text(encoding="utf-8"))
    for name, table in tables.items():
        known(f"glossary.toml: {name}: a field", table, [part.name for part in fields(Term)[1:]])
    return tuple(Term(name, **table | {"also": tuple(table.get("also", ()))}) for name, table in tables.items())
