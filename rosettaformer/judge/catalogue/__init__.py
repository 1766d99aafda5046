"""The catalogue of known bugs: real porting mistakes that alter one component of the reference."""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from .alteration import Alteration, Altered, Variants, injected
from .records import families, properties

__all__ = ["Alteration", "Defect", "all_defects", "defects_of", "injected"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect(Alteration):
    """A known bug: an alteration found in real ports.

    what: what is computed instead, with the formula. shows: the symptoms, and which input triggers
    them. evidence: where it was reported. unobservable: why no output can reveal it; empty if the
    cases must catch it.
    """

    what: str
    shows: str
    evidence: str = "derived, not reported"
    unobservable: str = ""


@functools.cache
def all_defects() -> Mapping[str, Defect]:
    """Returns the catalogue by id.

    Raises ValueError if a family's two files have different ids, or a table is invalid (see
    `records`).
    """
    return {id_: defect for name in families() for id_, defect in defects_of(name).items()}


@functools.cache
def defects_of(family: str) -> Mapping[str, Defect]:
    """Returns the known bugs of one family by id, in the order of its Python file."""
    module, tables = importlib.import_module(f"{__name__}.{family}"), families()[family]
    altered: Altered = module.ALTERED
    variants: Variants = getattr(module, "VARIANTS", {})
    if odd := altered.keys() ^ tables.keys() | variants.keys() - altered.keys():
        raise ValueError(f"{family}.py and {family}.toml must have the same ids; only in one: {', '.join(sorted(odd))}")
    return {
        id_: Defect(id=id_, replaces=replaces, variants=variants.get(id_, {}), **properties(family, tables, id_))
        for id_, replaces in altered.items()
    }
