"""The catalogue of defects: real porting mistakes, each a few lines that alter one component of the reference."""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator

from ..reference.paths import Paths
from .defect import Defect

__all__ = ["Defect", "all_defects", "injected"]


def all_defects() -> dict[str, Defect]:
    """The catalogue by id. Raises ValueError where two defects share an id."""
    defects: dict[str, Defect] = {}
    for module in pkgutil.iter_modules(__path__):
        for defect in getattr(importlib.import_module(f"{__name__}.{module.name}"), "DEFECTS", ()):
            if defect.id in defects:
                raise ValueError(f"defect ids must be unique; got {defect.id} twice")
            defects[defect.id] = defect
    return defects


@contextlib.contextmanager
def injected(*defects: Defect) -> Iterator[None]:
    """The reference with these defects in it. Of several in one function each alters what those before it left there."""
    paths = Paths()
    with contextlib.ExitStack() as stack:
        for defect in defects:
            stack.enter_context(defect.altering(paths))
        if any(defect.followed for defect in defects):
            stack.enter_context(paths.followed())
        yield
