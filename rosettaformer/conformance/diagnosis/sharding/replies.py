"""The answer of a port to a case on a mesh, beside what is expected."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...case import Case
from ...compare import compare
from ...reference.tolerance import Expectation
from ..symptoms.answered import Answered, Run

PARAMETERS = "parameters."


@dataclass(frozen=True, eq=False)
class Reply:
    """One case, in its dtype; expected: of every output; given: what the port gave."""

    case: Case
    expected: Mapping[str, Expectation]
    given: Mapping[str, np.ndarray]

    @functools.cached_property
    def outputs(self) -> dict[str, Answered]:
        """Every output that has a value and shows something."""
        run, given = Run(self.case), self.case.part(self.given)
        return {
            name: Answered(run, name, one, given[name])
            for name, one in self.expected.items()
            if isinstance(given.get(name), np.ndarray) and not one.incomparable
        }

    @functools.cached_property
    def wrong(self) -> list[str]:
        """The outputs that the comparison refuses."""
        return [name for name, output in self.outputs.items() if compare(output.expectation, output.answer).excess > 1]

    @property
    def wrong_gradients(self) -> list[str]:
        """The names of the parameters whose gradients are wrong."""
        return [name.removeprefix(PARAMETERS) for name in self.wrong if name.startswith(PARAMETERS)]

    @property
    def right_gradients(self) -> list[str]:
        """The names of the parameters whose gradients are right, and not zero whatever the port does."""
        own = [name for name, output in self.outputs.items() if name.startswith(PARAMETERS) and not output.expectation.whole]
        return [name.removeprefix(PARAMETERS) for name in own if name not in self.wrong]

    def equals(self, predicted: Mapping[str, np.ndarray]) -> bool:
        """Whether every output equals what is predicted, within the tolerance. What is predicted as no number may be any."""
        return all(name in predicted and self._equals(output, predicted[name]) for name, output in self.outputs.items())

    def determined(self, predicted: Mapping[str, np.ndarray]) -> bool:
        """Whether something that is wrong is predicted as a number."""
        return any((output.off & ~np.isnan(predicted[name])).any() for name in self.wrong if (output := self.outputs[name]).shaped)

    @staticmethod
    def _equals(output: Answered, predicted: np.ndarray) -> bool:
        known = ~np.isnan(predicted)
        if known.all() or predicted.shape != output.got.shape:
            return output.near(predicted)
        return output.near(np.where(known, predicted, output.got), known)

    def gradient(self, name: str) -> Answered:
        """The gradient of a parameter."""
        return self.outputs[PARAMETERS + name]
