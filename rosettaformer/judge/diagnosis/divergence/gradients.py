"""Finds the first component in backward order with a wrong gradient.

Every component that agrees in the forward pass gets the reference's inputs and a random cotangent,
so that errors of later components cannot reach it.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_numpy import parameters

from ...case import Case
from ...compare import Comparison, compare
from ...expectation import components, tolerance, trace
from ...ports.adapters.recorder import Force
from ...ports.adapters.submodules import transposed
from ...ports.process import Worker
from ...status import Kind
from ...suite.gradients import with_cotangent
from .. import words
from .component_tree import Divergence, size
from .forward import chunks, run_forced


def within(path: str, around: str) -> bool:
    """Whether the first path is inside the second."""
    return path != around and (not around or path.startswith(f"{around}."))


class Probe:
    """The reference's cotangent and gradients of one differentiable component.

    Equal inputs count as one, the first of them, with the sum of their gradients: a module may take
    them as one argument.
    """

    def __init__(self, call: trace.TracedCall, case: Case) -> None:
        self._call, self._config = call, case.config
        cotangent = np.random.default_rng(zlib.crc32(f"{case.id} {call.path}".encode())).standard_normal(call.output.shape)
        self._question = with_cotangent(call.case(), np.asarray(cotangent)).at(case.dtype)
        inputs = {name: value for name, value in self._question.inputs.items() if name != "cotangent"}
        self._arrays = trace.arrays(inputs)
        names = [next(name for name, value in inputs.items() if value is array) for array in self._arrays]
        # by name, the index of the first input equal to it
        self._first = {name: next(i for i, other in enumerate(self._arrays) if np.array_equal(array, other))
                       for name, array in zip(names, self._arrays, strict=True)}  # fmt: skip
        self._names = names

    @property
    def force(self) -> Force:
        """The question to the port."""
        return Force(self._call.path, self._arrays, self._question.inputs["cotangent"])

    def compare(self, gradients: Mapping[str, Mapping[Any, np.ndarray]]) -> dict[str, Comparison]:
        """Compares the port's gradients by tensor; a missing gradient counts as zero."""
        expected = tolerance.expect(self._question, self._answer)
        got = {name: np.zeros(one.reference.shape, one.dtype) for name, one in expected.items()} | self._received(gradients)
        return {name.removeprefix("parameters."): compare(one, got[name]) for name, one in expected.items()}

    def _answer(self, case: Case) -> dict[str, np.ndarray]:
        """The reference's gradients, summed over equal inputs.

        The kernel of tied logits is left out, since many modules take it as an argument; the
        gradient of its table is among those of the whole.
        """
        merged: dict[str, np.ndarray] = {}
        for name, value in components.answer(case).items():
            if name in self._first:
                first = self._names[self._first[name]]
                merged[first] = merged[first] + value if first in merged else value
            elif not self._tied(name):
                merged[name] = value
        return merged

    def _tied(self, name: str) -> bool:
        return bool(self._call.path) and name.endswith("logits.kernel") and self._full(name) in parameters.ties(self._config)

    def _full(self, name: str) -> str:
        """The name of a parameter in the whole model."""
        own = name.removeprefix("parameters.")
        return f"{self._call.path}.{own}" if self._call.path else own

    def _received(self, gradients: Mapping[str, Mapping[Any, np.ndarray]]) -> dict[str, np.ndarray]:
        got = {}
        for name, index in self._first.items():
            if self._names[index] == name and index in gradients["inputs"]:
                got[name] = transposed(gradients["inputs"][index], self._arrays[index].shape)
        ties = parameters.ties(self._config)
        for own in self._call.parameters:
            full = self._full(own)
            if (stored := ties.get(full, full)) in gradients["parameters"]:
                got[f"parameters.{own}"] = gradients["parameters"][stored]
        return got


@dataclass(frozen=True)
class BackwardRow:
    """One component. gradients: the comparisons, by floating-point input and parameter."""

    path: str
    component: str
    gradients: Mapping[str, Comparison] = field(default_factory=dict)
    first: bool = False
    message: str = ""

    @property
    def name(self) -> str:
        """The path, or the component if the path is empty."""
        return self.path or self.component

    @property
    def worst(self) -> str:
        """The name of the gradient with the largest error; empty if none was compared."""
        return max(self.gradients, key=lambda name: self.gradients[name].excess, default="")

    @property
    def fails(self) -> bool:
        """Whether a gradient is wrong."""
        return bool(self.gradients) and self.gradients[self.worst].excess > 1


@dataclass(frozen=True)
class Backward:
    """Where gradients first differ. rows: the components that agree forward, in backward order."""

    port: str
    case: str
    dtype: str
    sentence: str
    rows: tuple[BackwardRow, ...] = ()

    @property
    def first(self) -> BackwardRow | None:
        """The first divergence, if there is one."""
        return next((row for row in self.rows if row.first), None)


def backward(
    worker: Worker, forward: Divergence, case: Case, device: str = "cpu", limit: float = 120.0,
    progress: Callable[[float], None] = lambda share: None,
) -> Backward:  # fmt: skip
    """Walks the components that agree in the forward pass, from the last to the first. forward: the
    divergence of the same case.

    Reports the first component with a wrong gradient whose parts have correct gradients, and around
    which every gradient is wrong.
    """
    cast = case.at(forward.dtype, device)
    reference = trace.record(cast.at("float64"))
    agreeing = {row.path for row in forward.rows if row.forced is not None and not row.fails}
    probes = {
        path: Probe(reference[path], cast)
        for path in reversed(reference)
        if path in agreeing and reference[path].component in components.DIFFERENTIABLE
    }
    rows: list[BackwardRow] = []
    for paths in chunks(list(probes)):
        progress(len(rows) / len(probes))
        for path, (kind, answer) in run_forced(worker, cast, [probes[path].force for path in paths], limit):
            rows.append(_row(reference[path], probes[path], kind, answer.get(path, {}) if kind == Kind.OUTPUTS else answer))
    return _result(forward, rows)


def _result(forward: Divergence, rows: list[BackwardRow]) -> Backward:
    wrong = {row.path for row in rows if row.fails}
    around = {path: [row.path for row in rows if row.gradients and within(path, row.path)] for path in wrong}
    failing = [row.path for row in rows if row.fails and wrong.issuperset(around[row.path])]
    first = next((path for path in failing if not any(within(other, path) for other in failing)), None)
    rows = [dataclasses.replace(row, first=row.path == first) for row in rows]
    named = next((row for row in rows if row.first), None)
    sentence = words.no_wrong_gradient(sum(bool(row.gradients) for row in rows))
    if named is not None:
        parts = any(within(row.path, named.path) for row in rows)
        sentence = words.wrong_gradient(named.name, named.worst, size(named.gradients[named.worst]), parts)
    elif not any(row.gradients for row in rows):
        sentence = words.no_gradient(rows[0].message if rows else "")
    return Backward(forward.port, forward.case, forward.dtype, sentence, tuple(rows))


def _row(call: trace.TracedCall, probe: Probe, kind: str, answer: Any) -> BackwardRow:
    if kind != Kind.OUTPUTS or "gradients" not in answer:
        message = f"{kind}: {answer}" if kind != Kind.OUTPUTS else answer.get(Kind.ERROR, answer.get("refused", "no gradient was returned"))
        return BackwardRow(call.path, call.component, message=message)
    row = BackwardRow(call.path, call.component, probe.compare(answer["gradients"]))
    return dataclasses.replace(row, message=f"{row.worst}: {row.gradients[row.worst].message}") if row.fails else row
