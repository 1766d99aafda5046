"""Which cases a port is asked, and which of them are vacuous with its config.

Those that it declares not to answer, or that are of a suite release after the one that it pins, are
excluded with the reason: "not covered", never passed. Vacuous are inputs and parameters that a component's
cases show with the suite's config, but no longer with a port's fixed config. A layer norm over one feature,
or with an epsilon of 1e30, returns its offset for any input, and every implementation of it passes. A case
shows an array if its gradient does: if removing one of its entries would, to first order, change a random
projection of the output by more than one rounding of float32.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..case import DTYPES, LAST, Case
from ..expectation import components
from ..expectation.components import VJP
from ..expectation.tolerance import Expectation
from . import all_cases, fitted
from .artefact import fixed_cases
from .gradients import gradient

# what is declared -> its values, the default first
LIMITS: Mapping[str, tuple[Any, Any]] = {"positions": ("all", LAST), "rows": (0, 1), "masks": (True, False)}
DECLARED = (*LIMITS, "dtypes")
ALIKE = 0.8  # a share of equal letters


def limits_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is declared beyond the defaults. Raises ValueError on another value than the two that there are, and on a name that is
    nearly that of a declaration, with a value that it may have.
    """
    for name, value in said.items():
        if name not in DECLARED and (meant := get_close_matches(name, DECLARED, 1, ALIKE)) and _fits(meant[0], value):
            raise ValueError(f"a port declares {', '.join(DECLARED)}; got {name} (nearest: {meant[0]})")
    found = {name: said[name] for name in LIMITS if name in said}
    for name, value in found.items():
        if not any(value is one or (type(value) is type(one) and value == one) for one in LIMITS[name]):
            raise ValueError(f"{name} must be {' or '.join(map(repr, LIMITS[name]))}; got {value!r}")
    return {name: value for name, value in found.items() if value != LIMITS[name][0]}


def _fits(name: str, value: Any) -> bool:
    """Whether what is declared may have the value, and a variable of another meaning hardly would."""
    if name == "dtypes":
        return isinstance(value, tuple | list) and bool(value) and all(isinstance(dtype, str) and dtype in DTYPES for dtype in value)
    return type(value) in (str, bool) and value in LIMITS[name]


def fitted_to(about: Mapping[str, Any], cases: Sequence[Case] | None = None) -> list[Case]:
    """Returns the cases with the config and the shared kernels of a port that describes itself so, up to the suite release that it pins.

    cases: by default the suite's, with gradients. Raises ValueError if the port's config fits none.
    """
    config, shared, suite = about["config"], about.get("shared", ()), about.get("suite")
    try:
        found = all_cases(config, True, shared) if cases is None else fitted(cases, config, shared)
    except ValueError as error:
        raise ValueError(f"the port's config does not fit: {error}") from None
    newer = f"the port pins suite release {suite}; the case is of a later one"
    return [dataclasses.replace(case, excluded=newer) if suite is not None and case.release > suite else case for case in found]


def for_port(cases: Sequence[Case], about: Mapping[str, Any]) -> list[Case]:
    """Returns the cases as a port that describes itself so is asked them; those that it declares not to answer are excluded.

    Raises ValueError if the port is that of a whole model and no case has a folder.
    """
    if about.get("artefact"):
        return fixed_cases(cases, about.get("fixed", {}))
    if about.get("whole") and not any(case.folder for case in cases):
        raise ValueError("a port with load(folder) is judged on a folder of Hugging Face: --like FAMILY, or --like DIR")
    return [_limited(case, about.get("limits", {})) if case.folder else case for case in cases]


def _limited(case: Case, limits: Mapping[str, Any]) -> Case:
    token_bt, real_bt = next(case.inputs[side] for side in ("target", "source") if case.inputs.get(side) is not None), case.real_bt
    padded = real_bt is not None and not real_bt.all()
    last = limits.get("positions") == LAST and case.component != "classify"
    if "rows" in limits and len(token_bt) > 1:
        return dataclasses.replace(case, excluded="the port declares rows = 1")
    if "masks" in limits and padded:
        return dataclasses.replace(case, excluded="the port declares masks = False")
    if last and (case.component == "states" or case.component.endswith(VJP)):
        return dataclasses.replace(case, excluded='the port declares positions = "last"')
    if last and real_bt is not None and not real_bt[:, -1].all():
        return dataclasses.replace(case, excluded='the port declares positions = "last", and the last one is padding')
    return dataclasses.replace(case, compared=LAST) if last and case.component != "decode_in_steps" else case


ROUNDING = float(np.finfo(np.float32).eps)


class Hidden:
    """What the config that a port fixes hides from the cases of a run. Computed once per component, at its first use."""

    def __init__(self, cases: Iterable[Case], own: Iterable[Case]) -> None:
        """cases: with the port's config. own: as the suite has them."""
        self._own = {case.id: case for case in own}
        known = [case for case in cases if not case.excluded and not case.mesh]  # on a mesh nothing else is hidden
        self._cases = [case for case in known if case is not self._own.get(case.id)]
        self._reasons: dict[str, dict[str, str]] = {}

    def reason(self, case: Case) -> str:
        """Returns what the case was to show and no case of its component shows; empty if it loses nothing."""
        if case.component not in self._reasons:
            self._reasons[case.component] = self._of(
                [one for one in self._cases if one.component == case.component and one.id in self._own]
            )
        return self._reasons[case.component].get(case.id, "")

    def _of(self, cases: list[Case]) -> dict[str, str]:
        now = {case.id: _effects(case) for case in cases}
        shown = {name for effects in now.values() for name, effect in effects.items() if effect > ROUNDING}
        reasons = {}
        for case in cases:
            before = _effects(self._own[case.id])
            if lost := [name for name in now[case.id] if name not in shown and before.get(name, 0.0) > ROUNDING]:
                changed = ", ".join(_changes(case, self._own[case.id]))
                reasons[case.id] = f"with {changed} the output does not depend on {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}"
        return reasons


def marked(expected: dict[str, Expectation], reason: str) -> dict[str, Expectation]:
    """Returns the expectations of a case, with the reason why it shows nothing; unchanged if the reason is empty."""
    return {name: dataclasses.replace(one, hidden=reason) for name, one in expected.items()} if reason else expected


def _changes(case: Case, own: Case) -> list[str]:
    fields, before = case.config.to_dict(), own.config.to_dict()
    return [f"{name}={value!r}" for name, value in fields.items() if value != before[name]]


def _effects(case: Case) -> dict[str, float]:
    """Returns how much removing an entry of each floating array changes the output, relative to its size; empty if there is no gradient."""
    try:
        return _gradient_effects(case)
    except ValueError:  # the config has no such output
        return {}


def _gradient_effects(case: Case) -> dict[str, float]:
    if case.component in (*components.SEARCHES, "decode_in_steps"):
        case = _of_model(case)
    if case.component in components.DIFFERENTIABLE:
        case = gradient(case)
    if not (forward := components.forward_of(case.component)):
        return {}
    values = dict(case.inputs) | {f"parameters.{name}": value for name, value in case.parameters.items()}
    inputs = {name: value for name, value in case.inputs.items() if name != "cotangent"}
    with np.errstate(all="ignore"):
        output = components.answer(dataclasses.replace(case, component=forward, inputs=inputs))["output"]
        size = float(np.abs(output * case.inputs["cotangent"]).max(initial=0.0))
        found = {name: float(np.abs(slope * values[name]).max(initial=0.0)) for name, slope in components.answer(case).items()}
    return {name: effect / size if size else 0.0 for name, effect in found.items()}


def _of_model(case: Case) -> Case:
    """Returns a case of the whole model that a search runs, on the tokens that the search is given."""
    ids = next(case.inputs[name] for name in ("source", "target", "prefix") if case.inputs.get(name) is not None)
    source = ids % case.config.source_vocabulary if case.config.encoder_layers else None
    inputs = {"source": source, "target": ids % case.config.target_vocabulary}
    return dataclasses.replace(case, component="transformer", inputs=inputs, excluded="")
