"""What the reference gives a component within a whole model, and what is allowed at each."""

from collections.abc import Collection

import numpy as np

from ...case import Case
from ...compare import compare
from ...ports.adapters.matching import assign, transposed
from ...reference import tolerance, trace

__all__ = ["Teacher"]


class Teacher:
    """The reference's calls of a case in its dtype, and what is allowed at each."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.calls = trace.record(case.at("float64", case.device, case.mode))
        tf32 = case.dtype == "float32" and case.device.endswith("tf32")
        self._runs = []
        for replacements in (tolerance.ORDERS | (tolerance.TF32_ORDERS if tf32 else {})).values():
            with tolerance.order(replacements):
                self._runs.append(trace.record(case))

    def question(self, path: str) -> Case:
        """The call of the component as a case of its own, in the dtype in which the reference calls it."""
        dtype = self._runs[0][path].output.dtype
        return self.calls[path].case(self.case.dtype if dtype.kind in "biu" else str(dtype))

    def arrays(self, path: str) -> list[np.ndarray]:
        """The inputs that the component is forced with."""
        return trace.arrays(self.question(path).inputs)

    def forced(self, path: str) -> tolerance.Expectation:
        """What is allowed on the reference's inputs."""
        return tolerance.expect(self.question(path))["output"]

    def free(self, path: str) -> tolerance.Expectation:
        """What is allowed when everything before it was computed in the dtype, too."""
        return tolerance.expectation(self.calls[path].output, [run[path].output for run in self._runs])

    def consumer(self, path: str, among: Collection[str]) -> tuple[str, set[int]] | None:
        """Of these, the first component in the order of execution that takes the output of the one at the path, and which of its inputs
        depend on it; None where none of them does."""
        output = self.calls[path].output
        if output.dtype.kind != "f":
            return None
        noise = np.random.default_rng(0).standard_normal(output.shape)
        case = self.case.at("float64", self.case.device, self.case.mode)
        other = trace.record(case, lambda call: call.output + noise if call.path == path else None)
        changed = {name: _different(trace.arrays(call.inputs), trace.arrays(other[name].inputs)) for name, call in self.calls.items()}
        consumers = {name: inputs for name, inputs in changed.items() if inputs and name in among}
        first = next(iter(consumers), None)
        while first is not None and (around := self.parent(first, consumers)) is not None:
            first = around  # what finishes first began within what began first
        return None if first is None else (first, consumers[first])

    def inputs_agree(self, path: str, got: list[np.ndarray], among: Collection[int] | None = None) -> bool | None:
        """Whether a port's inputs, or those among these indices, are the reference's; None where they have no counterpart."""
        wanted = trace.arrays(self.calls[path].inputs)
        runs = [trace.arrays(run[path].inputs) for run in self._runs]
        chosen = assign(got, wanted) if wanted else None
        if chosen is None:
            return None
        expectations = [tolerance.expectation(array, [run[index] for run in runs]) for index, array in enumerate(wanted)]
        meant = set(range(len(wanted))) if among is None else among
        pairs = [(expectations[index], array) for array, index in zip(got, chosen, strict=True) if index is not None and index in meant]
        return all(compare(expectation, transposed(array, expectation.reference.shape)).excess <= 1 for expectation, array in pairs)

    def parent(self, path: str, among: Collection[str]) -> str | None:
        """The nearest component around it that is one of those."""
        above = self.calls[path].parent
        while above is not None and above not in among:
            above = self.calls[above].parent
        return above


def _different(first: list[np.ndarray], second: list[np.ndarray]) -> set[int]:
    """The indices of the arrays that differ."""
    return {index for index, pair in enumerate(zip(first, second, strict=True)) if not np.array_equal(*pair)}
