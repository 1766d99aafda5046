"""The cases: data, one module a component family. Sizes are all different, every parameter is random and of visible size."""

import importlib
import pkgutil

from ..case import Case
from ..truth import COMPONENTS

__all__ = ["all_cases"]


def all_cases() -> list[Case]:
    """Every case, in the order of the components. Raises ValueError where two share an id."""
    cases = [
        case
        for module in pkgutil.iter_modules(__path__)
        if module.name != "build"
        for case in importlib.import_module(f"{__name__}.{module.name}").cases()
    ]
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("case ids must be unique")
    order = list(COMPONENTS)
    return sorted(cases, key=lambda case: order.index(case.component))
