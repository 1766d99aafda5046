"""The decisions that govern a component: docstrings name them by their ids."""

import functools
import re
from collections.abc import Mapping
from importlib import resources

from .modules import PACKAGES, read
from .sources import source

NAMED = {"GATE": "feed_forward"}  # decisions that no docstring names


@functools.cache
def decisions() -> Mapping[str, str]:
    """Returns the decisions by id, as docs/decisions.md has them. Raises ValueError if the table is missing."""
    text = (resources.files("rosettaformer.guide") / "decisions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]{3,}) \| (.+) \|$", text, flags=re.MULTILINE)
    if not rows:
        raise ValueError("rosettaformer/guide/decisions.md must be docs/decisions.md, a table of ids and decisions; it has no such row")
    return dict(rows)


@functools.cache
def governing(component: str) -> tuple[str, ...]:
    """Returns the ids in the docstrings of the component: in what is shown of the reference, in the ports, and in their files."""
    texts = [source(component, package).docstring for package in PACKAGES]
    own = source(component, PACKAGES[0])
    for block in own.blocks:
        texts += ["\n".join(line for piece in block.pieces if piece.opens for line in piece.lines)]
    mains = [source(component, package).main[0].symbol for package in PACKAGES]
    texts += [read(main.package, main.module).docstring for main in mains]
    return tuple(id for id in decisions() if NAMED.get(id) == component or any(re.search(rf"\b{id}\b", text) for text in texts))
