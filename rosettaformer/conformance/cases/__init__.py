"""The cases as data: a function `cases` in one module for each component family.

Sizes all differ; every parameter is random and large enough to show.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from reference_numpy import TransformerConfig

from ..case import Case
from ..reference.components import COMPONENTS, answer, forward_of, takes_config
from .build import Builder
from .gradients import gradients

NAMED = 3  # config fields that a reason names if there are many


def all_cases(fixed: Mapping[str, Any] | None = None, grad: bool = False, shared: Sequence[str] = ()) -> list[Case]:
    """Returns every case, in the order of the components; those of a later version of the suite after the others.

    grad: includes the gradient cases. fixed: the config fields that a port fixes, which the cases then have; a case that is about another
    value, or that the reference refuses with them, is excluded, with the reason.
    shared: the ends of the names of kernels that all heads of the port share.
    Raises ValueError if two cases share an id, and on fixed fields that make no valid config.
    """
    build = Builder(fixed or {}, shared)
    cases = [
        _excluded(case, build.fixed)
        for module in (importlib.import_module(f"{__name__}.{part.name}") for part in pkgutil.iter_modules(__path__))
        if hasattr(module, "cases")
        for case in module.cases(build)
    ]
    if build.conflict and all(case.excluded for case in cases):
        raise ValueError(build.conflict)
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("case ids must be unique")
    order = list(COMPONENTS)
    return sorted(cases + (gradients(cases) if grad else []), key=lambda case: (order.index(case.component), case.since))


def of_components(cases: Iterable[Case], components: Collection[str], grad: bool = False) -> list[Case]:
    """Returns the cases of the components, or of all if none is named: with grad the gradients, too, or components by their own names."""

    def belongs(component: str) -> bool:
        forward = forward_of(component)
        if component in components:
            return True
        return grad and (not components or forward in components) if forward else not components

    return [case for case in cases if belongs(case.component)]


def fitted(cases: Sequence[Case], fixed: Mapping[str, Any], shared: Sequence[str] = ()) -> list[Case]:
    """Returns the same cases for a port that fixes some config fields, or that has kernels which all heads share: made anew if they are the
    suite's own; cases of a checkpoint are excluded if they differ. Each keeps the dtypes in which it is run.
    """
    if not fixed and not shared:
        return list(cases)
    own = {case.id: case for case in all_cases(fixed, any(forward_of(case.component) for case in cases), shared)}
    return [
        dataclasses.replace(own[case.id], dtypes=case.dtypes) if case.id in own else _of_checkpoint(case, fixed, shared) for case in cases
    ]


def _of_checkpoint(case: Case, fixed: Mapping[str, Any], shared: Sequence[str]) -> Case:
    """Returns a case of a checkpoint, with the reason if it does not fit the fixed fields or kernels that all heads share."""
    if kernels := [name for name in case.parameters if f".{name}".endswith(tuple(f".{end}" for end in shared))]:
        return dataclasses.replace(case, excluded=f"all heads of the port share {kernels[0]}, and the checkpoint has a kernel of each")
    return _excluded(case, fixed, "the checkpoint has")


def _excluded(case: Case, fixed: Mapping[str, Any], whose: str = "") -> Case:
    """Returns the case, with the reason if the fixed fields exclude it. whose: introduces the case's own values, all of them."""
    own = case.config.to_dict()
    others = {name: value for name, value in TransformerConfig.apart(fixed).items() if own[name] != value}
    fields = [f"{name}={value!r}" for name, value in others.items()]
    more = f" and {len(others) - NAMED} others" if len(others) > NAMED + 1 and not whose else ""
    split = [name for name in case.shared if case.parameters[name].shape[0] % case.parameters[name].shape[1]]
    reason = f"the port fixes {', '.join(fields[:NAMED] if more else fields)}{more}" if others else _refused(case) if fixed else ""
    if others and whose:
        reason += f"; {whose} {', '.join(f'{name}={own[name]!r}' for name in others)}"
    if split and not reason:
        reason = f"all heads of the port share {split[0]}, each for its slice of the width, which the case cannot divide among them"
    return dataclasses.replace(case, excluded=reason) if reason else case


def _refused(case: Case) -> str:
    """Returns why the reference refuses a case with what a port fixes: the config has no such stack or head. Empty if it does not."""
    try:
        if takes_config(case.component):
            answer(case)
    except ValueError as error:
        return f"with what the port fixes {error}"
    return ""
