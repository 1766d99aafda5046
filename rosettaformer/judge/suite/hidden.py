"""Finds the cases that are vacuous: they cannot fail with a port's config.

An input or parameter is vacuous if a component's cases depend on it with the suite's config, but
not with the port's. For example, a layer norm over one feature, or with an epsilon of 1e30, returns
its offset for any input, so every implementation passes. A case depends on an array if its gradient
does: removing an entry would, to first order, change a random projection of the output by more than
one rounding of float32.
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
    """The cases that are vacuous with a port's config. Computed per component, on first use."""

    def __init__(self, cases: Iterable[Case] = (), own: Iterable[Case] = ()) -> None:
        """cases: with the port's config. own: with the suite's config."""
        self._own = {case.id: case for case in own}
        known = [case for case in cases if not case.excluded and not case.mesh]  # a mesh hides nothing more
        self._cases = [case for case in known if case is not self._own.get(case.id)]
        self._reasons: dict[str, dict[str, str]] = {}

    def reason(self, case: Case) -> str:
        """Returns which arrays no case of the component depends on any more; "" if none."""
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
    """Returns a case's expectations with the reason why it is vacuous, if any."""
    return {name: dataclasses.replace(one, hidden=reason) for name, one in expected.items()} if reason else expected


def _changes(case: Case, own: Case) -> list[str]:
    fields, before = case.config.to_dict(), own.config.to_dict()
    return [f"{name}={value!r}" for name, value in fields.items() if value != before[name]]


def _effects(case: Case) -> dict[str, float]:
    """Returns the relative effect of removing an entry of each floating-point array."""
    try:
        return _gradient_effects(case)
    except ValueError:  # the config does not have this output
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
    """Returns a whole-model case on the tokens of a search."""
    ids = next(case.inputs[name] for name in ("source", "target", "prefix") if case.inputs.get(name) is not None)
    source = ids % case.config.source_vocabulary if case.config.encoder_layers else None
    inputs = {"source": source, "target": ids % case.config.target_vocabulary}
    return dataclasses.replace(case, component="transformer", inputs=inputs, excluded="")
