"""The catalogue of defects: real porting mistakes, each a few lines that alter one component of the truth."""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from unittest import mock

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
    """The truth with these defects in it."""
    with contextlib.ExitStack() as stack:
        for defect in defects:
            for place, function in defect.replaces.items():
                module, name = place.split(".")
                stack.enter_context(mock.patch.object(importlib.import_module(f"reference_numpy.{module}"), name, function))
        yield
