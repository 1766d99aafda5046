"""Settings of the learning rate: other schedules, and the paper's with a part that is missing or exchanged."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .alteration import Alteration, setting, settings
from .combinators import on_call

Rate = Callable[[np.ndarray, float, float], np.ndarray]


def other_rate(rate: Rate) -> Callable:
    """Replaces `noam` by another function of the steps n, the width d and the warm-up w."""

    def altered(original: Callable, step: Any, width: int, warmup: int, dtype: Any = np.float64) -> np.ndarray:
        return np.asarray(rate(np.asarray(step, np.float64), float(width), float(warmup))).astype(dtype)

    return altered


_RATES: dict[str, tuple[str, Rate]] = {
    "no width": ("the factor d^-1/2 is missing", lambda n, d, w: np.minimum(n**-0.5, n * w**-1.5)),
    "1 / width": ("the factor of the width is 1 / d, without its root", lambda n, d, w: np.minimum(n**-0.5, n * w**-1.5) / d),
    "width multiplied": ("the rate is multiplied by the root of the width", lambda n, d, w: d**0.5 * np.minimum(n**-0.5, n * w**-1.5)),
    "larger of both": ("the larger of the two branches is taken", lambda n, d, w: d**-0.5 * np.maximum(n**-0.5, n * w**-1.5)),
    "no warm-up": ("there is no warm-up", lambda n, d, w: d**-0.5 * n**-0.5),
    "w^-1": ("the warm-up is n / w, without its second factor w^-1/2", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n / w)),
    "w^-1/2": ("the warm-up is n w^-1/2", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n * w**-0.5)),
    "w^-3": ("the warm-up is n w^-3", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n * w**-3)),
    "root of the warm-up": ("the warm-up rises with the root of the step", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n**0.5 / w)),
    "constant, then falling": ("the rate is constant in the warm-up", lambda n, d, w: d**-0.5 * np.maximum(n, w) ** -0.5),
    "constant, no width": (
        "the rate is constant in the warm-up, without the factor of the width, as T5's", lambda n, d, w: np.maximum(n, w) ** -0.5),
    "peak 1": ("the largest rate is 1: min(n / w, sqrt(w / n))", lambda n, d, w: np.minimum(n / w, (w / n) ** 0.5)),
    "peak 1, constant": ("the rate is min(1, n / w)", lambda n, d, w: np.minimum(1.0, n / w)),
    "peak d^-1/2": (
        "the largest rate is d^-1/2: d^-1/2 min(n / w, sqrt(w / n))", lambda n, d, w: d**-0.5 * np.minimum(n / w, (w / n) ** 0.5)),
    "width and warm-up exchanged": (
        "the width and the warm-up are exchanged", lambda n, d, w: w**-0.5 * np.minimum(n**-0.5, n * d**-1.5)),
    "inverse": ("the rate is the inverse of the schedule's", lambda n, d, w: 1 / (d**-0.5 * np.minimum(n**-0.5, n * w**-1.5))),
}  # fmt: skip


def schedules() -> Iterator[Alteration]:
    """The settings of the schedule."""
    fix = "d^-1/2 min(n^-1/2, n w^-3/2), n counted from 1"
    yield from settings("rate=", "noam", fix, _RATES, of=other_rate)
    for name, count, what in (("step", 1, "steps are"), ("warmup", 1, "the warm-up is"), ("warmup", -1, "the warm-up is")):
        title = f"{what} counted from 2" if name == "step" else f"{what} one step {'longer' if count > 0 else 'shorter'}"
        altered = on_call(lambda name=name, count=count, **given: {name: np.maximum(np.asarray(given[name]) + count, 1)})
        yield setting(f"rate={name}{count:+d}", "noam", title, fix, altered)
