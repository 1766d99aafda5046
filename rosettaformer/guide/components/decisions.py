"""The decisions that govern a component; docstrings refer to them by id."""

import functools
import re
from collections.abc import Mapping
from importlib import resources

from .modules import PACKAGES, read
from .sources import source

NAMED = {"GATE": "feed_forward"}  # decisions that no docstring names


@functools.cache
def decisions() -> Mapping[str, str]:
    """Returns the text of each decision by its id. Raises ValueError if docs/decisions.md has no sections named by ids."""
    text = (resources.files("rosettaformer.guide") / "decisions.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## ([A-Z]{3,})\n((?:.*\n)*?)(?=\n## )", text, flags=re.MULTILINE)
    if not sections:
        raise ValueError("docs/decisions.md must have a section for each decision, named by its id; found none")
    return {id: " ".join(re.sub(r"^ *- ", "", bullets, flags=re.MULTILINE).split()) for id, bullets in sections}


@functools.cache
def governing(component: str) -> tuple[str, ...]:
    """Returns the decision ids in a component's docstrings, in all packages."""
    texts = [source(component, package).docstring for package in PACKAGES]
    own = source(component, PACKAGES[0])
    for block in own.blocks:
        texts += ["\n".join(line for piece in block.pieces if piece.opens for line in piece.lines)]
    mains = [source(component, package).main[0].symbol for package in PACKAGES]
    texts += [read(main.package, main.module).docstring for main in mains]
    return tuple(id for id in decisions() if NAMED.get(id) == component or any(re.search(rf"\b{id}\b", text) for text in texts))
