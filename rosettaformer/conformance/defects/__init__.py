"""The catalogue of defects: real porting mistakes, each a few lines that alter one component of the reference."""

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any
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
                stack.enter_context(mock.patch.object(module, function, _bound(altered, getattr(module, function))))
        yield


def _bound(altered: Callable, original: Callable) -> Callable:
    """The altered function with the signature of the one that it replaces and is given."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return altered(original, *args, **kwargs)

    return function
