"""The suite's cases as data. Each module for a component family has a function `cases`.

All sizes differ, and all parameters are random and large enough to affect the outputs.
"""

import importlib
import pkgutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..case import Case
from ..expectation.components import COMPONENTS, forward_of
from .build import Builder, excluded, reads_config
from .gradients import gradients

# modules whose cases follow the others of their components
AFTER = ("decoders", "experts", "single_stack", "training_mode")


def all_cases(fixed: Mapping[str, Any] | None = None, grad: bool = False, shared: Sequence[str] = ()) -> list[Case]:
    """Returns all cases, ordered by component and then by suite release.

    grad: also returns the gradient cases. fixed: config fields with a fixed value in a port; the
    cases use these values. A case that tests another value, or that the reference rejects with
    them, is excluded, with the reason. shared: the ends of the names of kernels that all heads of
    the port share.

    Raises ValueError if two cases have the same id, or the fixed fields make every config invalid.
    """
    build = Builder(fixed or {}, shared)
    names = sorted((part.name for part in pkgutil.iter_modules(__path__)), key=AFTER.__contains__)
    cases = [
        excluded(case, build.fixed)
        for module in (importlib.import_module(f"{__name__}.{name}") for name in names)
        if hasattr(module, "cases")
        for case in module.cases(build)
    ]
    if build.conflict and all(case.excluded for case in cases if reads_config(case)):
        raise ValueError(build.conflict)
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("case ids must be unique")
    order = list(COMPONENTS)
    return sorted(cases + (gradients(cases) if grad else []), key=lambda case: (order.index(case.component), case.release))


def of_components(cases: Iterable[Case], components: Collection[str], grad: bool = False) -> list[Case]:
    """Returns the cases of the components, or of all. grad: also their gradients."""

    def belongs(component: str) -> bool:
        forward = forward_of(component)
        if component in components:
            return True
        return grad and (not components or forward in components) if forward else not components

    return [case for case in cases if belongs(case.component)]
