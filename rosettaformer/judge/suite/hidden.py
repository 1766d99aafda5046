"""Which cases are vacuous with a port's config.

Vacuous are inputs and parameters that a component's cases show with the suite's config, but not with a
port's fixed config. A layer norm over one feature, or with an epsilon of 1e30, returns its offset for any
input, and every implementation of it passes. A case shows an array if its gradient does: if removing one of
its entries would, to first order, change a random projection of the output by more than one rounding of
float32.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from ..case import Case
from ..expectation import components
from ..expectation.tolerance import Expectation
from .gradients import gradient

ROUNDING = float(np.finfo(np.float32).eps)


class Hidden:
    """What the config that a port fixes hides from the cases of a run. Computed once per component, at its first use."""

    def __init__(self, cases: Iterable[Case] = (), own: Iterable[Case] = ()) -> None:
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
