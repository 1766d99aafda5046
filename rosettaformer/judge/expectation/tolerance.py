"""The tolerance of a case, derived from the reference itself.

r is the float64 reference on the inputs rounded to the dtype. c_i is the same reference computed in
the dtype, with its additions in another order. The differences between the c_i and r are the
rounding errors of plain arithmetic in the dtype on this case; a port's may be MAX_FACTOR times as
large.

Four orders suffice for an output with many elements. A single number, and a gradient whose elements
all depend on the same few roundings, also use SHUFFLES random orders, as do short prompts of whole
models, and cases in float64 whose orders agree by chance. Training steps, with their many outputs,
use STEPPED. Searches, which score few hypotheses, use SEARCHED, and there the c_i replay the
choices of r so that they score the same hypotheses. For random components r is the mean over DRAWS
seeds and the c_i are the single draws.

An output that wrong zeros would pass is not comparable (`Expectation.incomparable`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..case import REAL, Case, numpy_dtype
from . import components, statistics
from .choices import Chooser, Key, Replay, chosen_by
from .orders import GRADIENT_ORDERS, ORDERS, TF32_ORDERS, order, shuffled
from .routing import ROUTED, Decisions, Token

Answer = Callable[..., dict[str, np.ndarray]]  # takes a case; for a search also a context manager to enter while it runs
Lower = Callable[[Case, "Expectations", Answer], "Expectations"]
Error = tuple[np.dtype, float, float]  # the dtype of a run, its largest error, its root mean square error

MAX_FACTOR = 4.0
RMSE_FACTOR = {8: 2.0, 4: 2.0, 2: 3.0}  # by the dtype's bytes
SHUFFLES, SEARCHED, STEPPED, DRAWS = 16, 8, 4, 32
FEW = 200  # tokens of a prompt


@dataclass(frozen=True)
class Expectation:
    """One output of the reference: float64 value, dtype, and the dtype's plain errors."""

    reference: np.ndarray
    dtype: np.dtype
    noise: float  # max_i max |c_i - r|; infinite or NaN if one of the c_i overflows
    noise_rmse: float  # max_i rmse(c_i, r)
    unit: float  # one ulp of the largest |r| in the dtype
    note: str = ""  # why a differing output differs
    hidden: str = ""  # why a passing output is vacuous
    whole: float = 0.0  # if r is zero, the largest |r| of everything that this output is part of
    decisions: int = 0  # of the routers: how many there are
    undecided: int = 0  # of these, how many rounding may change
    lower: str = ""  # the lower precision that the noise belongs to
    open: int = 0  # tokens that are not compared, as undecided decisions before them or theirs stay open
    tried: int = 0  # if none can be compared for that reason, the choices that do not explain the output
    own: float = 0.0  # the dtype's own bound, if the noise belongs to a lower precision

    @property
    def bound(self) -> float:
        """The largest error that passes: MAX_FACTOR * noise + one ulp."""
        return MAX_FACTOR * self.noise + self.unit

    @property
    def bound_rmse(self) -> float:
        """The largest RMS error that passes; single numbers and zero parts use `bound`."""
        if self.reference.size == 1 or self.whole:
            return self.bound
        return RMSE_FACTOR.get(self.dtype.itemsize, 0) * self.noise_rmse + self.unit

    @property
    def plain_error(self) -> float:
        """The error that a ratio of 1 stands for: the noise, but at least half an ulp."""
        return max(self.noise, self.unit / 2)

    @property
    def largest(self) -> float:
        """The largest finite |r|."""
        return float(np.abs(self._finite).max(initial=0.0))

    @property
    def incomparable(self) -> str:
        """Why no output can be compared: for example, zeros would pass; empty if outputs can."""
        if not self.reference.size:
            return "it is empty"
        if self.tried:
            return f"{self.undecided} of {self.decisions} routing decisions are undecided, and none of {self.tried} choices explains it"
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


@np.errstate(over="ignore", invalid="ignore")  # overflow makes an output incomparable
def expect(case: Case, answer: Answer = components.answer, rounded: bool = False, random_orders: bool = False) -> Expectations:
    """Returns the expectations of all outputs of a case cast to its dtype.

    answer: replaces the reference, for example with an altered one. rounded: r is computed in the
    case's own dtype, for alterations that only change rounding. random_orders: use random orders
    for any component, as for gradients.
    """
    if case.component in statistics.RANDOM:
        return _of_draws(case, answer)
    if case.component in components.SEARCHES:
        chooser = Chooser()
        reference, decisions = chosen(case, chooser, answer, rounded)
        return searched(case, chooser.made, reference, decisions, answer).found
    return decided(case, answer, rounded, {}, random_orders)[0]


def decided(
    case: Case,
    answer: Answer,
    rounded: bool,
    changed: Mapping[Token, np.ndarray],
    random_orders: bool = False,
    lower: Lower | None = None,
) -> tuple[Expectations, Decisions, list[np.ndarray]]:
    """Returns the expectations, the decisions of routers, and the bounds of their scores.

    changed: decisions that differ from the reference's own. lower: widens the expectations by runs in a lower precision.
    """
    gradient = has_gradients(case)
    made, scores = Decisions(changed=changed, gradient=gradient), list[list[np.ndarray]]()
    with made.recorded():
        reference = answer(case) if rounded else answer(case.at("float64"))

    def following(*given: Any) -> dict[str, np.ndarray]:
        replay = Decisions(made.made)
        with replay.recorded():
            found = answer(*given)
        scores.append(replay.scores)
        return found

    ask = following if made.calls else answer
    alone = any(value.size == 1 and value.dtype.kind == "f" for value in reference.values())
    shuffles = gradient or random_orders or alone or _is_short(case)
    count = STEPPED if case.component == "training_steps" else SHUFFLES if shuffles else 0
    found = _in_orders(case, ask, reference, _orders(case) + [shuffled(seed) for seed in range(count)])
    if case.dtype == "float64" and not count and not any(one.noise or one.dtype.kind in "biu" for one in found.values()):
        found = _in_orders(case, ask, reference, [shuffled(seed) for seed in range(SHUFFLES)])
    found = lower(case, found, ask) if lower else found
    bounds = _score_bounds(made, scores)
    found = _with_zeros(case, ask, reference, found) if gradient and not rounded else found
    return _counted(found, case, made, bounds), made, bounds


def _counted(found: Expectations, case: Case, decisions: Decisions, bounds: Sequence[np.ndarray]) -> Expectations:
    """Returns the expectations with the numbers of decisions, if there are any."""
    if not decisions.calls:
        return found
    real_bt = real(case, decisions)
    count, open_ = decisions.count(real_bt), sum(1 for _ in decisions.undecided(bounds, real_bt))
    return {name: dataclasses.replace(one, decisions=count, undecided=open_) for name, one in found.items()}


def real(case: Case, decisions: Decisions) -> np.ndarray | None:
    """Returns the tokens whose decisions count, `b t`; None for all.

    Padding that is compared counts, too. In a search, only the prefix has padding.
    """
    if case.component in components.SEARCHES:
        mask_bp = case.inputs.get("prefix_mask_bp")
        if mask_bp is None or case.config.encoder_layers or not decisions.calls:
            return None
        return np.repeat(mask_bp, len(decisions.made[0]) // len(mask_bp), axis=0)
    real_bt = case.real_bt if case.compared == REAL or case.component == ROUTED else None
    one_text = real_bt is not None and ("splits" in case.inputs or all(made.shape[:2] == real_bt.shape for made in decisions.made))
    return real_bt if one_text else None


def _score_bounds(decisions: Decisions, runs: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Returns the largest error of a token's scores for every call of a router, `b t 1`.

    A few orders may agree on a token by chance, so that at least the median error counts. runs: the
    scores in each order.
    """
    found = []
    for call, own_btx in enumerate(decisions.scores):
        errors = [np.abs(run[call] - own_btx).max(-1, keepdims=True) for run in runs]
        error_bt1 = np.max(errors, axis=0) if errors else np.zeros_like(own_btx[..., :1])
        unit = ulp(float(np.abs(own_btx).max(initial=0.0)), runs[0][call].dtype) if errors else 0.0
        found.append(MAX_FACTOR * np.maximum(error_bt1, np.median(error_bt1)) + unit)
    return found


def has_gradients(case: Case) -> bool:
    """Whether its outputs are gradients, or come from them."""
    return bool(components.forward_of(case.component)) or case.component in components.MESHES


def _is_short(case: Case) -> bool:
    """Whether it is a short prompt, where one token may have most of the error."""
    return bool(case.folder) and numpy_dtype(case.dtype).itemsize > 2 and all(np.size(value) <= FEW for value in case.inputs.values())


def in_orders(run: Callable[[], Any], orders: Iterable[dict[str, Callable]]) -> list[Any]:
    """Returns the results of a run in each of these summation orders."""
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
    """Returns a gradient's expectations, with zero parts scaled like the whole gradient, as their
    terms are.

    A part is zero if no |r| exceeds the bound of float64. For example, the gradient of a key bias
    is zero, since the softmax does not depend on it. The rest of its terms are the rounding
    errors of a few sums, equal in all elements, so that only the largest error counts, as for a
    single number.
    """
    doubtful = [name for name, expectation in found.items() if np.isfinite(expectation.bound) and expectation.incomparable]
    if not doubtful:
        return found
    wide = case.at("float64")
    exact = found if case.dtype == "float64" else _in_orders(wide, answer, reference, _orders(wide))
    whole = max(expectation.largest for expectation in found.values())
    zeros = {name: dataclasses.replace(found[name], whole=whole) for name in doubtful if found[name].largest <= exact[name].bound}
    return found | zeros


def chosen(
    case: Case, chooser: Chooser, answer: Answer = components.answer, rounded: bool = False
) -> tuple[dict[str, np.ndarray], Decisions]:
    """Returns r of a search with the chooser's choices, and the decisions of its routers."""
    decisions = Decisions()
    with decisions.recorded():
        return answer(case if rounded else case.at("float64"), chosen_by(chooser)), decisions


class Searched(NamedTuple):
    """A search. scores: in each order. undecided: a row of the batch, and the first step that depends on the decision."""

    found: Expectations
    scores: list[dict[Key, np.ndarray]]
    undecided: list[tuple[int, int]]


def searched(
    case: Case, made: Mapping[Key, Any], reference: Mapping[str, np.ndarray], decisions: Decisions, answer: Answer = components.answer
) -> Searched:
    """Returns the expectations of a search. reference: r. made, decisions: its choices and those of its routers."""
    runs, scores, routed = [], [], []
    for replacements in _orders(case) + [shuffled(seed) for seed in range(SEARCHED)]:
        replay, following = Replay(made), Decisions(decisions.made)
        with order(replacements), following.recorded():
            runs.append(answer(case, chosen_by(replay)))
        scores.append(replay.scores)
        routed.append(following.scores)
    found = {name: expectation(value, [run[name] for run in runs]) for name, value in reference.items()}
    bounds = _score_bounds(decisions, routed)
    rows = len(next(iter(reference.values())))
    before, layers = (sum(map(case.config.has_experts, range(count))) for count in (case.config.encoder_layers, case.config.decoder_layers))
    undecided = [
        (token.row * rows // len(decisions.made[token.call]), max(0, token.call - before) // layers)
        for token, *_ in decisions.undecided(bounds, real(case, decisions))
    ]
    return Searched(_counted(found, case, decisions, bounds), scores, undecided)


def _orders(case: Case) -> list[dict[str, Callable]]:
    tf32 = TF32_ORDERS if case.dtype == "float32" and case.device.endswith("tf32") else {}
    return list((ORDERS | tf32 | (GRADIENT_ORDERS if has_gradients(case) else {})).values())


def _of_draws(case: Case, answer: Answer) -> Expectations:
    """Returns the expectations of random statistics: mean and spread over DRAWS seeds."""
    draws = [answer(dataclasses.replace(case, inputs=dict(case.inputs) | {"seed": seed})) for seed in range(DRAWS)]
    result = {}
    for name, first in draws[0].items():
        runs = [draw[name] for draw in draws]
        mean = first if first.dtype.kind in "iu" else np.mean([run.astype(np.float64) for run in runs], axis=0)
        result[name] = expectation(np.asarray(mean), runs)
    arrays: dict[str, float] = {}  # the largest statistic of each array; its mean or correlation may be zero
    for name, one in result.items():
        arrays[name.rpartition(".")[0]] = max(arrays.get(name.rpartition(".")[0], 0.0), one.largest if one.dtype.kind not in "biu" else 0.0)
    return {name: dataclasses.replace(one, whole=arrays[name.rpartition(".")[0]]) for name, one in result.items()}


def expectation(reference: np.ndarray, runs: list[np.ndarray]) -> Expectation:
    """Returns an expectation. reference: the float64 value. runs: plain values in the dtype."""
    return _expectation(reference, [_error(reference, run) for run in runs])


def _error(reference: np.ndarray, run: np.ndarray) -> Error:
    """Returns the dtype, the largest error and the root mean square error of a run."""
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
    """Returns the distance from |value| to the next number, at least the smallest normal one."""
    kind = numpy_dtype(str(dtype))
    limits = ml_dtypes.finfo(kind)
    return max(float(np.spacing(np.asarray(min(abs(value), 0.75 * float(limits.max)), dtype=kind))), float(limits.smallest_normal))
