"""Symptoms about sums, smaller dtypes, and dependences of the errors."""

from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np

from ...expectation import components
from .answered import Answered, Symptom
from .axes import letters, words

FEWEST = 3  # rows needed to see a property


def normalised(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Reports sums of 1 over an axis, rows of mean 0 and deviation 1, rows of norm 1."""
    if not all(one.shaped and one.expectation.dtype.kind not in "biu" and np.ptp(one.got) and one.wrong.any() for one in failing):
        return
    over = _sums_to_one(failing, lambda one: one.got)
    own = _sums_to_one(failing, lambda one: one.reference)
    if over and not set(over) & set(own):
        instead = f", not over {own[0]}" if own else ""
        yield Symptom("normalisation", f"{{output}} sums to 1 over {over[0]}{instead}", 72 if own else 66)
    elif own and not over and all((one.got >= 0).all() for one in failing):
        totals = np.concatenate([one.got.sum(-1)[one.reference.sum(-1) > 0.5] for one in failing])
        yield Symptom("normalisation", f"{{output}} sums to {_span(totals)} over {own[0]}, where the reference sums to 1", 30)
    for text, test in ROWS.items():
        if all(_has(one, one.got, test) for one in failing) and not any(_has(one, one.reference, test) for one in failing):
            yield Symptom("normalisation", text, 62)


def _span(values: np.ndarray) -> str:
    low, high = np.nanmin(values), np.nanmax(values)
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"between {low:.4g} and {high:.4g}"


def _sums_to_one(failing: Sequence[Answered], array: Callable[[Answered], np.ndarray]) -> list[str]:
    """The axes with nonnegative elements that sum to 1, or to 0 in rows without keys."""
    found = []
    for axis in range(-1, -failing[0].reference.ndim - 1, -1):
        if all(-one.reference.ndim <= axis and one.reference.shape[axis] > 1 and _sum_to_one(one, array(one), axis) for one in failing):
            one = failing[0]
            found.append(words(letters(one), one.reference.ndim + axis, one.reference.ndim))
    return found


def _sum_to_one(answered: Answered, array: np.ndarray, axis: int) -> bool:
    totals, allowed = array.sum(axis), answered.allowed(np.ones(1)) * array.shape[axis]
    one = np.abs(totals - 1) <= allowed
    return bool(one.sum() >= FEWEST and (one | (totals == 0)).all() and (array >= 0).all())


def _has(answered: Answered, array: np.ndarray, test: Callable[[np.ndarray, float], np.ndarray]) -> bool:
    if array.ndim < 2 or array.shape[-1] < FEWEST or array.size // array.shape[-1] < FEWEST:
        return False
    return bool(test(array, answered.allowed(np.ones(1)) * array.shape[-1]).all())


ROWS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "exp of {output} sums to 1 in every row: it is a log-softmax": lambda x, near: np.abs(np.exp(x).sum(-1) - 1) <= near,
    "every row of {output} has mean 0 and deviation 1: the last step is a norm without scale and offset": (
        lambda x, near: (np.abs(x.mean(-1)) <= near) & (np.abs(x.std(-1) - 1) <= 1e-3)
    ),
    "every row of {output} has mean 0": lambda x, near: np.abs(x.mean(-1)) <= near * np.abs(x).max(),
    "every row of {output} has L2 norm 1": lambda x, near: np.abs(np.linalg.norm(x, axis=-1) - 1) <= near,
    "every row of {output} has root mean square 1": lambda x, near: np.abs((x**2).mean(-1) - 1) <= near,
}


def spanned(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Reports what the errors have in common, which only shows where to look."""
    if not all(
        one.shaped and one.expectation.dtype.kind not in "biu" and np.isfinite(one.got).all() and one.wrong.any() for one in failing
    ):
        return
    for text, rank, test in DIFFERENCES:
        if all(test(one) for one in failing):
            yield Symptom("span", text, rank)
            return
    for name in (name for name in failing[0].case.parameters if name.endswith("kernel")):
        heads = failing[0].case.config.heads
        for head in range(heads) if heads > 1 else ():  # all of them can give whatever comes before the kernel
            if (within := [_within(one, name, head) for one in failing]).count(True) > len(failing) // 2 and False not in within:
                text = f"in every row, {{output}} minus the reference is in the span of head {head} of `{name}`"
                yield Symptom("span", text, 25)
                return


def _rows(answered: Answered) -> np.ndarray:
    difference = answered.got - answered.reference
    return difference.reshape(-1, difference.shape[-1])


def _same_rows(answered: Answered) -> bool:
    rows = _rows(answered)
    return bool(len(rows) >= FEWEST and rows.shape[1] > 1 and answered.close(rows, rows[:1], answered.allowed(rows)).all())


def _same_by_position(answered: Answered) -> bool:
    difference = answered.got - answered.reference
    enough = difference.ndim == 3 and difference.shape[0] >= 2 and difference.shape[1] >= 2
    return bool(enough and answered.close(difference, difference[:1], answered.allowed(difference)).all())


def _proportional(along: int, features: int) -> Callable[[Answered], bool]:
    """Whether rows (along 1) or features (along 0) are scaled. features: fewest per row."""

    def test(answered: Answered) -> bool:
        got, reference = (array.reshape(-1, array.shape[-1]) for array in (answered.got, answered.reference))
        if len(got) < FEWEST or got.shape[1] < features:
            return False
        factor = (got * reference).sum(along, keepdims=True) / np.maximum((reference**2).sum(along, keepdims=True), 1e-300)
        return bool(answered.close(got, factor * reference, answered.allowed(got)).all())

    return test


def _rank_one(answered: Answered) -> bool:
    rows = _rows(answered)
    if min(rows.shape) < FEWEST:
        return False
    values = np.linalg.svd(rows, compute_uv=False)
    return bool(values[1] <= answered.allowed(rows) * rows.size**0.5)


DIFFERENCES: tuple[tuple[str, int, Callable[[Answered], bool]], ...] = (
    ("{output} minus the reference is the same in every row: a constant for each feature, and no parameter", 45, _same_rows),
    ("{output} minus the reference is the same in every row of the batch: it depends only on the position", 40, _same_by_position),
    ("each row of {output} is the reference's row times a separate number", 44, _proportional(1, FEWEST)),
    ("each feature of {output} is the reference's feature times a separate number", 44, _proportional(0, 2)),
    ("{output} minus the reference is a single vector times a number for each row", 28, _rank_one),
)


def _within(answered: Answered, name: str, head: int) -> bool | None:
    """Whether the error is in the span of a kernel's head; None if any error would be."""
    kernel, rows = answered.case.parameters.get(name), _rows(answered)
    if kernel is None or kernel.shape[-1] != rows.shape[1] or kernel.ndim < 3 or head >= kernel.shape[0]:
        return False
    basis = kernel[head].astype(np.float64).reshape(-1, kernel.shape[-1])
    if len(basis) >= rows.shape[1] or len(rows) <= len(basis):
        return None
    orthogonal, _ = np.linalg.qr(basis.T)
    return bool(np.abs(rows - rows @ orthogonal @ orthogonal.T).max() <= answered.allowed(rows) * 10)


SMALLER = {8: ("bfloat16", "float16", "float32"), 4: ("bfloat16", "float16"), 2: ()}  # by the bytes of the dtype
FACTOR = 8  # factor by which an error may differ from that of the dtype's arithmetic


def rounded(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Reports the smallest dtype that represents the outputs, or has their errors."""
    if not failing or not all(one.shaped and one.expectation.dtype.kind == "f" and np.isfinite(one.got).all() for one in failing):
        return
    if any(np.ptp(one.got) == 0 for one in failing):
        return
    for dtype in SMALLER[failing[0].expectation.dtype.itemsize]:  # what bfloat16 holds, float32 holds, too
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if all(np.array_equal(one.got, one.got.astype(kind)) and not _held(one, kind) for one in failing):
            if all(one.close(one.got, one.reference.astype(kind).astype(np.float64), _unit(one, kind)).all() for one in failing):
                yield Symptom("rounding", f"{{output}} is the reference rounded to {dtype}: every element is a {dtype} number", 94)
            else:
                yield Symptom("rounding", f"{{output}} holds {dtype} numbers: it is rounded to {dtype}", 64)
            return
        if dtype == "float32" and all(_as_far(one, dtype) for one in failing):  # bugs seldom have such small errors
            yield Symptom("rounding", f"{{output}} is as far from the reference as {dtype} arithmetic makes it", 58)
            return


def _held(answered: Answered, kind: np.dtype) -> bool:
    """Whether the dtype also represents the reference, or there are too few numbers."""
    return np.array_equal(answered.reference, answered.reference.astype(kind)) or answered.got.size < FACTOR


def _unit(answered: Answered, kind: np.dtype) -> float:
    return float(np.spacing(np.abs(answered.reference).max().astype(kind)).astype(np.float64)) / 2


def _as_far(answered: Answered, dtype: str) -> bool:
    """Whether the error on this case is within FACTOR of the reference's own in the dtype."""
    case = answered.case.at(dtype)
    low = components.answer(case)[answered.name].astype(np.float64)
    plain, error = (float(np.sqrt(np.mean((array - answered.reference) ** 2))) for array in (low, answered.got))
    return bool(plain > 0 and plain / FACTOR <= error <= plain * FACTOR)
