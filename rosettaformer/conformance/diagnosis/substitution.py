"""Tests whether a model fails only because of one of its parts, by running the reference with the port's part in it."""

from collections.abc import Collection
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import injected
from ..ports.adapters.recorder import Force
from ..ports.adapters.submodules import transposed
from ..reference import tolerance, trace
from ..status import Kind
from . import altered
from .altered import FAILURES, Combination
from .search import Search
from .subject import Subject

__all__ = ["Substitution"]

TRIED = 3  # cases that fail


class Substitution:
    """The reference in which the port computes some components itself.

    components: those that the port covers and that fail by themselves. paths: the places of parts that fail only within a model.
    known: further alterations of the reference.
    """

    def __init__(self, subject: Subject, components: Collection[str], paths: Collection[str], known: Combination = ()) -> None:
        self._subject, self._components, self._paths, self._known = subject, components, paths, known

    def explains(self, search: Search) -> int:
        """The number of failing cases on which the port's output equals this reference's; 0 if one of them differs."""
        tried = [(search.hypotheses.probes[index], search.answers[index]) for index in search.cheapest()[:TRIED]]
        return len(tried) if tried and all(self._equals(*each) for each in tried) else 0

    def _equals(self, probe: Case, answer: altered.Outputs) -> bool:
        try:
            return altered.equal(tolerance.expect(probe, self._answer), answer)
        except FAILURES:
            return False

    def _answer(self, case: Case) -> dict[str, Any]:
        with injected(*(one.on(case) for one in self._known)):
            return {"output": trace.record(case, self._own)[""].output}

    def _own(self, call: trace.TracedCall) -> np.ndarray | None:
        """What the port gives for the call; None where it is not meant."""
        if call.path and call.component in self._components:
            replies = self._subject.ask([call.case(str(call.output.dtype))])
            output = replies[0][2]["output"] if replies and replies[0][1] == Kind.OUTPUTS else None
        elif call.path in self._paths:
            force = Force(call.path, trace.arrays(call.case(str(call.output.dtype)).inputs))
            kind, answer = self._subject.worker.call("trace", call.origin, [force], limit=self._subject.limit)
            output = answer[0].get(call.path, {}).get("output") if kind == Kind.OUTPUTS else None
        else:
            return None
        if not isinstance(output, np.ndarray) or (output := transposed(output, call.output.shape)).shape != call.output.shape:
            raise ValueError(f"the port's {call.name} must have an output of shape {call.output.shape}")
        return output.astype(call.output.dtype)
