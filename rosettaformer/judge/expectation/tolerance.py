"""The tolerance of a case, derived from the reference itself.

r is the float64 reference on the inputs rounded to the dtype. c_i is the same reference computed in the dtype, with its additions in
another order. The differences between the c_i and r are what plain arithmetic of that dtype costs on this case; a port may cost MAX_FACTOR
times as much. If an output has many elements, its largest error shows how large an error may be; if it is one number, or a gradient, whose
elements all depend on the same few roundings, four orders do not show it, and the c_i are also taken in SHUFFLES random orders, as those
of a whole model's short prompt are, and in STEPPED those of steps of training, whose outputs are many; of a search, which scores few
answers, in SEARCHED, and there the c_i make the choices of r, so that they score the same answers. For random draws r is the mean of DRAWS
seeds and the c_i are what each seed gives.
An output that zeros would pass although they are wrong shows nothing, and is not comparable (`Expectation.incomparable`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..case import Case, numpy_dtype
from . import components, statistics
from .choices import Chooser, Key, Replay, chosen_by
from .orders import GRADIENT_ORDERS, ORDERS, TF32_ORDERS, order, shuffled

Answer = Callable[..., dict[str, np.ndarray]]  # of a case; of a search also of what is entered while it runs
Error = tuple[np.dtype, float, float]  # the dtype of a run, its largest error, its root mean square error

MAX_FACTOR = 4.0
RMSE_FACTOR = {8: 2.0, 4: 2.0, 2: 3.0}  # by the dtype's bytes
SHUFFLES, SEARCHED, STEPPED, DRAWS = 16, 8, 4, 32
FEW = 200  # tokens of a prompt


@dataclass(frozen=True)
class Expectation:
    """One output of the reference: its value in float64, its dtype, and the errors of plain arithmetic in that dtype."""

    reference: np.ndarray
    dtype: np.dtype
    noise: float  # max_i max |c_i - r|; infinite or NaN if one of the c_i overflows
    noise_rmse: float  # max_i rmse(c_i, r)
    unit: float  # one ulp of the largest |r| in the dtype
    note: str = ""  # why a differing answer differs
    hidden: str = ""  # why a passing answer nevertheless shows nothing
    whole: float = 0.0  # if r is zero, the largest |r| of everything that this output is a part of
    lower: str = ""  # the lower precision whose cost the noise is
    own: float = 0.0  # what the dtype itself allows, where the noise is that of a lower precision

    @property
    def bound(self) -> float:
        """The largest error that passes: MAX_FACTOR * noise + one ulp."""
        return MAX_FACTOR * self.noise + self.unit

    @property
    def bound_rmse(self) -> float:
        """The largest root mean square error that passes; for one number, and for a part that is zero, only the largest error counts."""
        if self.reference.size == 1 or self.whole:
            return self.bound
        return RMSE_FACTOR.get(self.dtype.itemsize, 0) * self.noise_rmse + self.unit

    @property
    def plain_error(self) -> float:
        """What a ratio of 1 stands for: the noise, at least the half ulp to which a result can be rounded."""
        return max(self.noise, self.unit / 2)

    @property
    def largest(self) -> float:
        """The largest finite |r|."""
        return float(np.abs(self._finite).max(initial=0.0))

    @property
    def incomparable(self) -> str:
        """Why no answer can be judged: zeros would pass, or r is zero in every order; empty if one can."""
        if not self.reference.size:
            return "it is empty"
        if self.dtype.kind in "biu":
            return ""
        if not np.isfinite(self.reference).any():
            return "no reference value is finite"
        if self.largest == self.noise == 0:
            return ""
        if not np.isfinite(self.bound):
            return f"plain arithmetic in {self.dtype} overflows"
        size = max(self.largest, self.whole)
        if self.bound < size or self.bound_rmse < float(np.sqrt(np.mean(self._finite**2))):
            return ""
        return f"the bound {self.bound:.3g} is not below the largest reference value {size:.3g}"

    @property
    def _finite(self) -> np.ndarray:
        return np.where(np.isfinite(self.reference), self.reference, 0.0)


Expectations = dict[str, Expectation]


@np.errstate(over="ignore", invalid="ignore")  # if the dtype overflows, nothing is comparable
def expect(case: Case, answer: Answer = components.answer, rounded: bool = False, random_orders: bool = False) -> Expectations:
    """Returns the expectation of every output of a case that has been cast to its dtype.

    answer: what stands in for the reference, such as the reference with a defect in it. rounded: r is its answer in the case's own dtype,
    for what differs from the reference only in rounding. random_orders: random orders are used as for gradients, whatever the component.
    """
    if case.component in statistics.RANDOM:
        return _of_draws(case, answer)
    if case.component in components.SEARCHES:
        chooser = Chooser()
        reference = chosen(case, chooser, answer, rounded)
        return searched(case, chooser.made, reference, answer)[0]
    reference = answer(case) if rounded else answer(case.at("float64"))
    gradient = _has_gradients(case)
    alone = any(value.size == 1 and value.dtype.kind == "f" for value in reference.values())
    shuffles = gradient or random_orders or alone or _is_short(case)
    count = STEPPED if case.component == "training_steps" else SHUFFLES if shuffles else 0
    found = _in_orders(case, answer, reference, _orders(case) + [shuffled(seed) for seed in range(count)])
    return _with_zeros(case, answer, reference, found) if gradient and not rounded else found


def _has_gradients(case: Case) -> bool:
    return bool(components.forward_of(case.component)) or case.component in components.MESHES


def _is_short(case: Case) -> bool:
    """Whether it is a whole model in float32 or float64 at few tokens: one of them, whose sums cancel, may have most of the error."""
    return bool(case.folder) and numpy_dtype(case.dtype).itemsize > 2 and all(np.size(value) <= FEW for value in case.inputs.values())


def in_orders(run: Callable[[], Any], orders: Iterable[dict[str, Callable]]) -> list[Any]:
    """Returns what the reference gives in each of these summation orders."""
    found = []
    for replacements in orders:
        with order(replacements):
            found.append(run())
    return found


def _in_orders(case: Case, answer: Answer, reference: Mapping[str, np.ndarray], orders: Iterable[dict[str, Callable]]) -> Expectations:
    errors: dict[str, list[Error]] = {name: [] for name in reference}
    for replacements in orders:
        with order(replacements):
            run = answer(case)
        for name, value in reference.items():
            errors[name].append(_error(value, run[name]))
        del run  # outputs may be large
    return {name: _expectation(value, errors[name]) for name, value in reference.items()}


def _with_zeros(case: Case, answer: Answer, reference: Mapping[str, np.ndarray], found: Expectations) -> Expectations:
    """Returns a gradient's expectations, with its zero parts made as large as the whole gradient, since their terms are.

    A part is zero if float64 cannot tell it from zero: no |r| is above the bound of float64. The gradient of a key's bias is zero, since
    softmax does not change with it. What is left of its terms are the roundings of a few sums, the same in all of its elements, so that, as
    for one number, only the largest error counts.
    """
    doubtful = [name for name, expectation in found.items() if np.isfinite(expectation.bound) and expectation.incomparable]
    if not doubtful:
        return found
    wide = case.at("float64")
    exact = found if case.dtype == "float64" else _in_orders(wide, answer, reference, _orders(wide))
    whole = max(expectation.largest for expectation in found.values())
    zeros = {name: dataclasses.replace(found[name], whole=whole) for name in doubtful if found[name].largest <= exact[name].bound}
    return found | zeros


def chosen(case: Case, chooser: Chooser, answer: Answer = components.answer, rounded: bool = False) -> dict[str, np.ndarray]:
    """Returns r of a search whose choices the chooser makes."""
    return answer(case if rounded else case.at("float64"), chosen_by(chooser))


def searched(
    case: Case, made: Mapping[Key, Any], reference: Mapping[str, np.ndarray], answer: Answer = components.answer
) -> tuple[Expectations, list[dict[Key, np.ndarray]]]:
    """Returns the expectation of a search with these choices, whose r is the reference, and the scores by which each order chooses."""
    runs, scores = [], []
    for replacements in _orders(case) + [shuffled(seed) for seed in range(SEARCHED)]:
        replay = Replay(made)
        with order(replacements):
            runs.append(answer(case, chosen_by(replay)))
        scores.append(replay.scores)
    return {name: expectation(value, [run[name] for run in runs]) for name, value in reference.items()}, scores


def _orders(case: Case) -> list[dict[str, Callable]]:
    tf32 = TF32_ORDERS if case.dtype == "float32" and case.device.endswith("tf32") else {}
    return list((ORDERS | tf32 | (GRADIENT_ORDERS if _has_gradients(case) else {})).values())


def _of_draws(case: Case, answer: Answer) -> Expectations:
    """Returns what is expected of statistics of random numbers: their mean over DRAWS seeds, and how far one draw lies from it."""
    draws = [answer(dataclasses.replace(case, inputs=dict(case.inputs) | {"seed": seed})) for seed in range(DRAWS)]
    result = {}
    for name, first in draws[0].items():
        runs = [draw[name] for draw in draws]
        mean = first if first.dtype.kind in "iu" else np.mean([run.astype(np.float64) for run in runs], axis=0)
        result[name] = expectation(np.asarray(mean), runs)
    arrays: dict[str, float] = {}  # the largest statistic of each array, of which a zero mean or correlation is one
    for name, one in result.items():
        arrays[name.rpartition(".")[0]] = max(arrays.get(name.rpartition(".")[0], 0.0), one.largest if one.dtype.kind not in "biu" else 0.0)
    return {name: dataclasses.replace(one, whole=arrays[name.rpartition(".")[0]]) for name, one in result.items()}


def expectation(reference: np.ndarray, runs: list[np.ndarray]) -> Expectation:
    """Returns what is expected of an output whose float64 value is the reference, if plain arithmetic gave these values in the dtype."""
    return _expectation(reference, [_error(reference, run) for run in runs])


def _error(reference: np.ndarray, run: np.ndarray) -> Error:
    """Returns the dtype of a run, its largest error and its root mean square error."""
    if run.dtype.kind in "biu" or not reference.size:
        return run.dtype, 0.0, 0.0
    finite = np.isfinite(reference)
    error = np.where(finite, run.astype(np.float64), 0.0)
    error -= np.where(finite, reference, 0.0)
    np.abs(error, out=error)
    return run.dtype, float(error.max()), float(np.sqrt(np.mean(np.square(error, out=error))))


def _expectation(reference: np.ndarray, errors: Sequence[Error]) -> Expectation:
    dtype = errors[0][0]
    if dtype.kind in "biu" or not reference.size:
        return Expectation(reference, dtype, 0.0, 0.0, 0.0)
    reference = reference.astype(np.float64, copy=False)
    return Expectation(
        reference=reference,
        dtype=dtype,
        noise=float(np.max([largest for _, largest, _ in errors])),
        noise_rmse=float(np.max([rmse for *_, rmse in errors])),
        unit=ulp(float(np.abs(np.where(np.isfinite(reference), reference, 0.0)).max()), dtype),
    )


def ulp(value: float, dtype: Any) -> float:
    """Returns the distance from |value| to the next number of the dtype; at least its smallest normal number."""
    kind = numpy_dtype(str(dtype))
    limits = ml_dtypes.finfo(kind)
    return max(float(np.spacing(np.asarray(min(abs(value), 0.75 * float(limits.max)), dtype=kind))), float(limits.smallest_normal))
