"""The catalogue of defects: real porting mistakes, each a few lines that alter one component of the reference."""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from .alteration import Alteration, Altered, Variants, injected
from .records import families, properties

__all__ = ["Alteration", "Defect", "all_defects", "defects_of", "injected"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect(Alteration):
    """An alteration that ports were seen to make.

    what: what is computed instead, with the formula. shows: how it shows, and which input reveals it. evidence: where it was made.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    """

    what: str
    shows: str
    evidence: str = "derived, not reported"
    unobservable: str = ""


@functools.cache
def all_defects() -> Mapping[str, Defect]:
    """The catalogue by id. Raises ValueError if a family's two files differ in their ids, or a table is not as `records` has it."""
    return {id_: defect for name in families() for id_, defect in defects_of(name).items()}


@functools.cache
def defects_of(family: str) -> Mapping[str, Defect]:
    """The defects of one family by id, in the order in which its Python file has them."""
    module, tables = importlib.import_module(f"{__name__}.{family}"), families()[family]
    altered: Altered = module.ALTERED
    variants: Variants = getattr(module, "VARIANTS", {})
    if odd := altered.keys() ^ tables.keys() | variants.keys() - altered.keys():
        raise ValueError(f"{family}.py and {family}.toml must have the same ids; not in both: {', '.join(sorted(odd))}")
    return {
        id_: Defect(id=id_, replaces=replaces, variants=variants.get(id_, {}), **properties(family, tables, id_))
        for id_, replaces in altered.items()
    }
