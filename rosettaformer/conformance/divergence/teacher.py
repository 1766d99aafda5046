"""What the truth gives a component within a whole model, and what is allowed at each."""

from collections.abc import Collection

import numpy as np

from .. import taps, tolerance
from ..adapters.matching import assign, turned
from ..case import Case
from ..compare import compare

__all__ = ["Teacher"]


class Teacher:
    """The truth's taps of a case in its dtype, and what is allowed at each."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.taps = taps.record(case.at("float64", case.device, case.mode))
        tf32 = case.dtype == "float32" and case.device.endswith("tf32")
        self._runs = []
        for replacements in (tolerance.ORDERS | (tolerance.TF32_ORDERS if tf32 else {})).values():
            with tolerance.order(replacements):
                self._runs.append(taps.record(case))

    def question(self, path: str) -> Case:
        """The call of the component as a case of its own, in the dtype in which the truth calls it."""
        dtype = self._runs[0][path].output.dtype
        return self.taps[path].case(self.case.dtype if dtype.kind in "biu" else str(dtype))

    def arrays(self, path: str) -> list[np.ndarray]:
        """The inputs that the component is forced with."""
        return taps.arrays(self.question(path).inputs)

    def forced(self, path: str) -> tolerance.Expectation:
        """What is allowed on the truth's inputs."""
        return tolerance.expect(self.question(path))["output"]

    def free(self, path: str) -> tolerance.Expectation:
        """What is allowed when everything before it was computed in the dtype, too."""
        return tolerance.expectation(self.taps[path].output, [run[path].output for run in self._runs])

    def inputs_agree(self, path: str, got: list[np.ndarray]) -> bool | None:
        """Whether a port's inputs are the truth's; None where they have no counterpart."""
        wanted = taps.arrays(self.taps[path].inputs)
        runs = [taps.arrays(run[path].inputs) for run in self._runs]
        chosen = assign(got, wanted) if wanted else None
        if chosen is None:
            return None
        expectations = [tolerance.expectation(array, [run[index] for run in runs]) for index, array in enumerate(wanted)]
        pairs = [(expectations[index], array) for array, index in zip(got, chosen, strict=True) if index is not None]
        return all(compare(expectation, turned(array, expectation.reference.shape)).excess <= 1 for expectation, array in pairs)

    def parent(self, path: str, among: Collection[str]) -> str | None:
        """The nearest component around it that is one of those."""
        above = self.taps[path].parent
        while above is not None and above not in among:
            above = self.taps[above].parent
        return above
