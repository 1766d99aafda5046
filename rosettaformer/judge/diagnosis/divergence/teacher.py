"""The reference's values at every component of a whole model, with their tolerances."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ...compare import compare
from ...expectation import tolerance, trace
from ...ports.adapters.submodules import assign, transposed

Run = Mapping[str, Mapping[str, Any]]  # of a port, by canonical path: inputs, output
HALF = 0.5  # share of an error; if less of it is left, the next step undoes it
SURE = 5  # standard errors by which that share must be below HALF


class Teacher:
    """The reference's component calls for a case, with the tolerance of each."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.calls = trace.record(case.at("float64", case.device, case.mode))
        tf32 = case.dtype == "float32" and case.device.endswith("tf32")
        self._runs = []
        for replacements in (tolerance.ORDERS | (tolerance.TF32_ORDERS if tf32 else {})).values():
            with tolerance.order(replacements):
                self._runs.append(trace.record(case))

    def question(self, path: str) -> Case:
        """The call of the component as a case, in the dtype in which the reference calls it."""
        dtype = self._runs[0][path].output.dtype
        return self.calls[path].case(self.case.dtype if dtype.kind in "biu" else str(dtype))

    def arrays(self, path: str) -> list[np.ndarray]:
        """The inputs that the component is forced with."""
        return trace.arrays(self.question(path).inputs)

    def forced(self, path: str) -> tolerance.Expectation:
        """The expected output on the reference's inputs."""
        return tolerance.expect(self.question(path))["output"]

    def free(self, path: str) -> tolerance.Expectation:
        """The expected output if everything before the component is computed in the dtype, too."""
        return tolerance.expectation(self.calls[path].output, [run[path].output for run in self._runs])

    def undone(self, path: str, run: Run) -> bool:
        """Whether the error of a component's output is gone from the first recorded value that
        depends on it.

        Running the reference with that output predicts the value. A least-squares fit gives the
        share of the predicted difference that the port's value has; any other error there counts as
        noise, and the share must be below HALF with certainty.
        """
        output = transposed(run[path].get("output"), self.calls[path].output.shape)
        if not isinstance(output, np.ndarray) or output.dtype.kind != "f" or output.shape != self.calls[path].output.shape:
            return False
        found = self._next(path, run, output.astype(np.float64))
        if found is None:
            return False
        reference, predicted, got = found
        expected, left = predicted - reference, got - reference
        size = float(np.linalg.norm(expected))
        if not (np.isfinite(size) and size and np.isfinite(left).all()):
            return False
        share = float(expected @ left) / size**2
        unsure = SURE * float(np.linalg.norm(left - share * expected)) / size / np.sqrt(len(left))
        return abs(share) + unsure < HALF

    def _next(self, path: str, run: Run, output: np.ndarray) -> list[np.ndarray] | None:
        """The inputs of the first component that uses this output: the reference's, the predicted
        and the run's.

        None if no component of the run uses the output, or if its inputs have no counterpart.
        """
        case = self.case.at("float64", self.case.device, self.case.mode)
        other = trace.record(case, lambda call: output.astype(call.output.dtype) if call.path == path else None)
        inputs = {name: (trace.arrays(call.inputs), trace.arrays(other[name].inputs)) for name, call in self.calls.items()}
        changed = {name: _different(*pair) for name, pair in inputs.items() if name in run and _different(*pair)}
        first = next(iter(changed), None)
        while first is not None and (around := self.parent(first, changed)) is not None:
            first = around  # the component that finishes first may be inside one that started earlier
        if first is None or (chosen := assign(run[first]["inputs"], inputs[first][0])) is None:
            return None
        found = []
        for array, index in zip(run[first]["inputs"], chosen, strict=True):
            if index is not None and index in changed[first]:
                reference, predicted = (each[index] for each in inputs[first])
                found.append([each.astype(np.float64).ravel() for each in (reference, predicted, transposed(array, reference.shape))])
        return [np.concatenate(each) for each in zip(*found, strict=True)] if found else None

    def inputs_agree(self, path: str, got: list[np.ndarray]) -> bool | None:
        """Whether a port's inputs match the reference; None if they have no counterpart."""
        wanted = trace.arrays(self.calls[path].inputs)
        runs = [trace.arrays(run[path].inputs) for run in self._runs]
        chosen = assign(got, wanted) if wanted else None
        if chosen is None:
            return None
        expectations = [tolerance.expectation(array, [run[index] for run in runs]) for index, array in enumerate(wanted)]
        pairs = [(expectations[index], array) for array, index in zip(got, chosen, strict=True) if index is not None]
        return all(compare(expectation, transposed(array, expectation.reference.shape)).excess <= 1 for expectation, array in pairs)

    def parent(self, path: str, among: Collection[str]) -> str | None:
        """The nearest enclosing component among these."""
        above = self.calls[path].parent
        while above is not None and above not in among:
            above = self.calls[above].parent
        return above


def _different(first: list[np.ndarray], second: list[np.ndarray]) -> set[int]:
    """The indices of the arrays that differ."""
    return {index for index, pair in enumerate(zip(first, second, strict=True)) if not np.array_equal(*pair)}
