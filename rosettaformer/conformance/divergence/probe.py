"""The gradients of one component, against the truth's own, taken numerically.

The port's framework gives the gradient G of <cotangent, output>. The truth's derivative is taken in float64 along random directions V of
unit length and compared with <G, V>: not every element by itself. What is allowed is four times the sum of: what two steps of
Richardson's extrapolation differ by; the roundoff of a difference, epsilon sum |cotangent output| / step; what another order of the
truth's additions changes; for float32, what one rounding of all inputs and parameters changes; and the dtype's epsilon times the largest
sum |G V| of the component's tensors, since a gradient that cancels to zero is the sum of terms of that size.
"""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import parameters

from .. import taps, tolerance, truth
from ..adapters.matching import turned
from ..adapters.tapping import Force
from ..case import Case

__all__ = ["Gradient", "Probe", "within"]

DIRECTIONS = 2  # for each tensor
DRAWS = 3  # of a direction, of which the smoothest is taken: a step may cross the kink of a ReLU
STEP = 1e-3

Point = Mapping[tuple[str, Any], np.ndarray]  # ("inputs", index) or ("parameters", name) -> array


@dataclass(frozen=True)
class Gradient:
    """The gradient with respect to one tensor, or to all parameters of a component together, along the direction where it is worst."""

    name: str
    error: float
    allowed: float
    got: float
    wanted: float

    @property
    def excess(self) -> float:
        """The error in units of what passes."""
        return self.error / self.allowed if math.isfinite(self.error) else math.inf


def within(path: str, around: str) -> bool:
    """Whether a component is a part of another one, by their paths."""
    return path != around and (not around or path.startswith(f"{around}."))


class Probe:
    """The truth's side of one component: its cotangent, and its derivative along a direction."""

    def __init__(self, tap: taps.Tap, case: Case, tapped: set[str]) -> None:
        self._tap, self._dtype, self._config = tap, case.dtype, case.config
        self._case = tap.case(case.dtype).at("float64") if tap.output.dtype.kind == "f" else tap.case()
        self._rng = np.random.default_rng(zlib.crc32(f"{case.id} {tap.path}".encode()))
        self._cotangent = self._rng.standard_normal(tap.output.shape).astype(case.dtype).astype(np.float64)
        self._roundoff = float(np.finfo(np.float64).eps * np.abs(self._cotangent * tap.output).sum()) / (STEP / 4)
        self._arrays = taps.arrays(self._case.inputs)
        self._whole = not any(within(path, tap.path) for path in tapped)
        self.tensors = self._tensors() if tap.output.dtype.kind == "f" else []

    @property
    def force(self) -> Force:
        """What the port is asked."""
        return Force(self._tap.path, taps.arrays(self._tap.case(self._dtype).inputs), self._cotangent.astype(self._dtype))

    def compare(self, gradients: Mapping[str, Mapping[Any, np.ndarray]]) -> tuple[Gradient, ...]:
        """The port's gradients beside the truth's: for each tensor the direction along which they differ most."""
        got = self._received(gradients)
        measured = [(name, *self._measure(keys, got)) for name, keys in self.tensors for _ in range(DIRECTIONS)]
        largest = max((magnitude for *_, magnitude in measured if math.isfinite(magnitude)), default=0.0)
        rounding = float(np.finfo(self._dtype).eps) * largest
        compared = [
            Gradient(name, abs(mine - wanted), tolerance.MAX_FACTOR * (noise + rounding), mine, wanted)
            for name, mine, wanted, noise, _ in measured
        ]
        worst = {gradient.name: gradient for gradient in sorted(compared, key=lambda gradient: gradient.excess)}
        return tuple(worst[name] for name, _ in self.tensors)

    def _tensors(self) -> list[tuple[str, list[tuple[str, Any]]]]:
        """What is compared: a name, and the tensors that are moved together. Equal inputs are one: a module may take them as one."""
        groups: dict[int, list[tuple[str, Any]]] = {}
        for index, array in enumerate(self._arrays):
            if array.dtype.kind == "f":
                same = next(i for i, other in enumerate(self._arrays) if np.array_equal(array, other))
                groups.setdefault(same, []).append(("inputs", index))
        names = [name for name in self._tap.parameters if not self._tied(name)]
        inputs = [(f"input {index + 1}", keys) for index, keys in groups.items()]
        if not self._whole and names:
            return [*inputs, ("its parameters", [("parameters", name) for name in names])]
        return [*inputs, *((name, [("parameters", name)]) for name in names)]

    def _tied(self, name: str) -> bool:
        """True of the kernel of tied logits, which many a module takes as an argument: the table's own gradient is in the whole's."""
        return bool(self._tap.path) and self._tap.component == "logits" and self._full(name) in parameters.ties(self._config)

    def _full(self, name: str) -> str:
        return f"{self._tap.path}.{name}" if self._tap.path else name

    def _received(self, gradients: Mapping[str, Mapping[Any, np.ndarray]]) -> Point:
        got: dict[tuple[str, Any], np.ndarray] = {}
        for index, array in enumerate(self._arrays):
            if index in gradients["inputs"]:
                got["inputs", index] = turned(gradients["inputs"][index], array.shape).astype(np.float64)
        ties = parameters.ties(self._config)
        for name in self._tap.parameters:
            full = self._full(name)
            if (stored := ties.get(full, full)) in gradients["parameters"] and not self._tied(name):
                got["parameters", name] = gradients["parameters"][stored].astype(np.float64)
        return got

    def _measure(self, keys: list[tuple[str, Any]], got: Point) -> tuple[float, float, float, float]:
        """Along the smoothest of a few random directions: the port's derivative, the truth's, its noise, the sum |G V|."""
        first = keys[0]
        drawn = min((self._draw(keys) for _ in range(DRAWS)), key=lambda measured: measured[2])
        direction, wanted, noise = drawn
        # The port gives one gradient for equal inputs, at the first of them.
        products = [got[key] * direction[key] for key in (keys if first[0] == "parameters" else [first]) if key in got]
        mine = float(sum(product.sum() for product in products))
        return mine, wanted, noise, float(sum(np.abs(product).sum() for product in products))

    def _draw(self, keys: list[tuple[str, Any]]) -> tuple[Point, float, float]:
        values = {key: self._rng.standard_normal(self._value(key).shape) for key in keys}
        if keys[0][0] == "inputs":
            values = dict.fromkeys(keys, values[keys[0]])
        length = math.sqrt(sum(float(np.square(value).sum()) for value in values.values()))
        direction = {key: value / length for key, value in values.items()}
        wanted, noise = self._derivative(direction, self._case)
        with tolerance.order(tolerance.ORDERS["backwards"]):
            noise += abs(self._derivative(direction, self._case)[0] - wanted)
        if self._dtype == "float32":
            noise += max(abs(self._derivative(direction, rounded)[0] - wanted) for rounded in self._rounded())
        return direction, wanted, noise

    def _rounded(self) -> Iterator[Case]:
        """The case with every number moved by up to one rounding of the dtype, twice."""
        epsilon = float(np.finfo(self._dtype).eps)

        def moved(values: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: value * (1 + epsilon * self._rng.uniform(-1, 1, value.shape))
                if isinstance(value, np.ndarray) and value.dtype.kind == "f"
                else value
                for name, value in values.items()
            }

        for _ in range(2):
            yield dataclasses.replace(self._case, inputs=moved(self._case.inputs), parameters=moved(self._case.parameters))

    def _derivative(self, direction: Point, case: Case) -> tuple[float, float]:
        """Central differences extrapolated twice (Richardson), and what the two extrapolations may be off by."""
        steps = [(self._objective(direction, case, h) - self._objective(direction, case, -h)) / (2 * h) for h in (STEP, STEP / 2, STEP / 4)]
        coarse, fine = ((4 * second - first) / 3 for first, second in itertools.pairwise(steps))
        return fine, abs(fine - coarse) + self._roundoff

    def _objective(self, direction: Point, case: Case, step: float) -> float:
        names = [name for name, value in case.inputs.items() if any(value is array for array in taps.arrays(case.inputs))]
        inputs, values = dict(case.inputs), dict(case.parameters)
        for (kind, key), value in direction.items():
            target, name = (inputs, names[key]) if kind == "inputs" else (values, key)
            target[name] = target[name] + step * value
        output = truth.answer(dataclasses.replace(case, inputs=inputs, parameters=values))["output"]
        return float((output * self._cotangent).sum())

    def _value(self, key: tuple[str, Any]) -> np.ndarray:
        return self._arrays[key[1]] if key[0] == "inputs" else self._case.parameters[key[1]]
