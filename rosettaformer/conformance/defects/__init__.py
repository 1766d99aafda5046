"""The catalogue of defects: real porting mistakes, each a few lines that alter one component of the reference."""

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from unittest import mock

from ..reference.components import module_of
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
    """The reference with these defects in it. Of several at one place each alters what those before it left there."""
    with contextlib.ExitStack() as stack:
        for defect in defects:
            for place, altered in defect.replaces.items():
                name, _, function = place.rpartition(".")
                module = module_of(name)
                original = getattr(module, function)
                with_its_signature = functools.update_wrapper(functools.partial(altered, original), original)
                stack.enter_context(mock.patch.object(module, function, with_its_signature))
        yield
