"""The cases: data, one module a component family. Sizes are all different, every parameter is random and of visible size."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

from ..case import Case
from ..truth import COMPONENTS
from .build import Builder

__all__ = ["all_cases", "fitted"]


def all_cases(fixed: Mapping[str, Any] | None = None) -> list[Case]:
    """Every case, in the order of the components.

    fixed: the config fields that a port fixes. The cases have them; one that is about another value is excluded, with the reason.
    Raises ValueError where two cases share an id, and on fixed fields that make no config.
    """
    build = Builder(fixed or {})
    cases = [
        _excluded(case, build.fixed)
        for module in pkgutil.iter_modules(__path__)
        if module.name != "build"
        for case in importlib.import_module(f"{__name__}.{module.name}").cases(build)
    ]
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("case ids must be unique")
    order = list(COMPONENTS)
    return sorted(cases, key=lambda case: order.index(case.component))


def fitted(cases: Iterable[Case], fixed: Mapping[str, Any]) -> list[Case]:
    """The same cases for a port that fixes some config fields: made anew with them where the suite has the case, otherwise excluded where
    they differ."""
    if not fixed:
        return list(cases)
    own = {case.id: case for case in all_cases(fixed)}
    return [own[case.id] if case.id in own else _excluded(case, fixed) for case in cases]


def _excluded(case: Case, fixed: Mapping[str, Any]) -> Case:
    others = [f"{name}={value!r}" for name, value in fixed.items() if getattr(case.config, name) != value]
    return dataclasses.replace(case, excluded=f"the port fixes {', '.join(others)}") if others else case
