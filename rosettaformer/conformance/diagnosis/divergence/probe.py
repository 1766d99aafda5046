"""The gradients of one component of a model, against the reference's own, written by hand (`<component>_vjp`).

The port's framework gives the gradient of <cotangent, output> with respect to the inputs on which the component was forced and to its
parameters. Every element is compared; what is allowed is what plain arithmetic of the dtype costs on the same gradient.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import parameters

from ...case import Case
from ...cases.gradients import with_cotangent
from ...compare import Comparison, compare
from ...ports.adapters.recorder import Force
from ...ports.adapters.submodules import transposed
from ...reference import components, tolerance, trace

__all__ = ["Probe", "within"]


def within(path: str, around: str) -> bool:
    """Whether a component is a part of another one, by their paths."""
    return path != around and (not around or path.startswith(f"{around}."))


class Probe:
    """The reference's side of one component that is differentiable: its cotangent and its gradients.

    Inputs that are equal are one, the first of them, whose gradient is the sum: a module may take them as one.
    """

    def __init__(self, call: trace.TracedCall, case: Case) -> None:
        self._call, self._config = call, case.config
        cotangent = np.random.default_rng(zlib.crc32(f"{case.id} {call.path}".encode())).standard_normal(call.output.shape)
        self._question = with_cotangent(call.case(), np.asarray(cotangent)).at(case.dtype)
        inputs = {name: value for name, value in self._question.inputs.items() if name != "cotangent"}
        self._arrays = trace.arrays(inputs)
        names = [next(name for name, value in inputs.items() if value is array) for array in self._arrays]
        # by name the first input that is equal to it
        self._first = {name: next(i for i, other in enumerate(self._arrays) if np.array_equal(array, other))
                       for name, array in zip(names, self._arrays, strict=True)}  # fmt: skip
        self._names = names

    @property
    def force(self) -> Force:
        """What the port is asked."""
        return Force(self._call.path, self._arrays, self._question.inputs["cotangent"])

    def compare(self, gradients: Mapping[str, Mapping[Any, np.ndarray]]) -> dict[str, Comparison]:
        """The port's gradients beside the reference's, by tensor; what has none in the port has one of zero."""
        expected = tolerance.expect(self._question, self._answer)
        got = {name: np.zeros(one.reference.shape, one.dtype) for name, one in expected.items()} | self._received(gradients)
        return {name.removeprefix("parameters."): compare(one, got[name]) for name, one in expected.items()}

    def _answer(self, case: Case) -> dict[str, np.ndarray]:
        """The reference's gradients: of equal inputs their sum, and without the kernel of tied logits, which many a module takes as an
        argument; the table's own gradient is in the whole's."""
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
