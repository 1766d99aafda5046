"""Known bugs of the update and the learning rate; settings of the schedule."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import optimizer
from reference_numpy.parameters import flatten, nest

from .alteration import Alteration, Altered, Variants, on_arguments, on_call, on_result, setting, settings
from .update_settings import divide, root, stepped

Rate = Callable[[np.ndarray, float, float], np.ndarray]


def other_rate(rate: Rate) -> Callable:
    """Replaces `noam` by another function of the step n, the width d and the warm-up w."""

    def altered(original: Callable, step: Any, width: int, warmup: int, dtype: Any = np.float64) -> np.ndarray:
        return np.asarray(rate(np.asarray(step, np.float64), float(width), float(warmup))).astype(dtype)

    return altered


_RATES: dict[str, tuple[str, Rate]] = {
    "no width": ("the factor d^-1/2 is missing", lambda n, d, w: np.minimum(n**-0.5, n * w**-1.5)),
    "1 / width": ("the width factor is 1 / d instead of d^-1/2", lambda n, d, w: np.minimum(n**-0.5, n * w**-1.5) / d),
    "width multiplied": ("the width factor is d^1/2 instead of d^-1/2", lambda n, d, w: d**0.5 * np.minimum(n**-0.5, n * w**-1.5)),
    "larger of both": ("the schedule takes the maximum of the two branches", lambda n, d, w: d**-0.5 * np.maximum(n**-0.5, n * w**-1.5)),
    "no warm-up": ("there is no warm-up", lambda n, d, w: d**-0.5 * n**-0.5),
    "w^-1": ("the warm-up is n / w without the factor w^-1/2", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n / w)),
    "w^-1/2": ("the warm-up is n w^-1/2", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n * w**-0.5)),
    "w^-3": ("the warm-up is n w^-3", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n * w**-3)),
    "root of the warm-up": ("the warm-up grows with sqrt(n)", lambda n, d, w: d**-0.5 * np.minimum(n**-0.5, n**0.5 / w)),
    "constant, then falling": ("the rate is constant during the warm-up", lambda n, d, w: d**-0.5 * np.maximum(n, w) ** -0.5),
    "constant, no width": (
        "the rate is constant during the warm-up, without the width factor, as in T5", lambda n, d, w: np.maximum(n, w) ** -0.5),
    "peak 1": ("the peak rate is 1: min(n / w, sqrt(w / n))", lambda n, d, w: np.minimum(n / w, (w / n) ** 0.5)),
    "peak 1, constant": ("the rate is min(1, n / w)", lambda n, d, w: np.minimum(1.0, n / w)),
    "peak d^-1/2": (
        "the peak rate is d^-1/2: d^-1/2 min(n / w, sqrt(w / n))", lambda n, d, w: d**-0.5 * np.minimum(n / w, (w / n) ** 0.5)),
    "width and warm-up exchanged": (
        "the width and the warm-up are swapped", lambda n, d, w: w**-0.5 * np.minimum(n**-0.5, n * d**-1.5)),
    "inverse": ("the rate is 1 / the schedule's rate", lambda n, d, w: 1 / (d**-0.5 * np.minimum(n**-0.5, n * w**-1.5))),
}  # fmt: skip


def schedules() -> Iterator[Alteration]:
    """Yields the settings of the schedule."""
    fix = "d^-1/2 min(n^-1/2, n w^-3/2), n counted from 1"
    yield from settings("rate=", "noam", fix, _RATES, of=other_rate)
    for name, count, what in (("step", 1, "steps are"), ("warmup", 1, "the warm-up is"), ("warmup", -1, "the warm-up is")):
        title = f"{what} counted from 2" if name == "step" else f"{what} one step {'longer' if count > 0 else 'shorter'}"
        altered = on_call(lambda name=name, count=count, **given: {name: np.maximum(np.asarray(given[name]) + count, 1)})
        yield setting(f"rate={name}{count:+d}", "noam", title, fix, altered)


Tree = Mapping[str, Any]
FOREVER = 10**9  # a step at which both bias corrections are 1 in every dtype


def _epsilon_hat(epsilon: float, beta_2: float, step: int, **others: Any) -> dict[str, Any]:
    return {"epsilon": epsilon / (1 - beta_2**step) ** 0.5}


def _coupled_decay(parameters: Tree, gradients: Tree, weight_decay: float, **others: Any) -> dict[str, Any]:
    values, decays = flatten(parameters), flatten(optimizer.decay_mask(parameters))
    penalised = {
        name: gradient + gradient.dtype.type(weight_decay * decays[name]) * values[name] for name, gradient in flatten(gradients).items()
    }
    return {"gradients": nest(penalised), "weight_decay": 0.0}


def _step(**parts: Callable) -> Mapping[str, Callable]:
    return {"optimizer.adam": stepped(**parts)}


def _corrected(first: Callable[[Any], float], second: Callable[[Any], float]) -> Mapping[str, Callable]:
    """Corrects the moments with other divisors."""
    return _step(
        first_hat=lambda s: divide(s.first, s.number(first(s))),
        second_hat=lambda s: divide(s.second, s.number(second(s))),
    )


def _rate(rate: Rate) -> Mapping[str, Callable]:
    return {"schedule.noam": other_rate(rate)}


def _from_zero(original: Callable, step: Any, width: int, warmup: int, dtype: Any = np.float64) -> np.ndarray:
    before = np.asarray(step) - 1
    rate = original(np.maximum(before, 1), width, warmup, dtype)
    return np.where(before < 1, rate.dtype.type(0), rate)


ALTERED: Altered = {
    "OPT1": {"optimizer.adam": on_call(_epsilon_hat)},
    "OPT2": {"optimizer.adam": on_arguments(step=FOREVER)},
    "OPT3": {"optimizer.adam": on_call(_coupled_decay)},
    "OPT4": {"optimizer.decay_mask": on_result(lambda decays: nest(dict.fromkeys(flatten(decays), True)))},
    "OPT5": {"schedule.noam": _from_zero},
    "OPT6": _step(moved=lambda s: s.p - s.rate * s.direction - s.decay * s.p),
    "OPT7": _step(direction=lambda s: divide(s.first_hat, root(s.second_hat + s.epsilon))),
    "OPT8": _rate(lambda n, d, w: d**-0.5 * np.minimum(w**-0.5, n * w**-1.5)),
}
VARIANTS: Variants = {
    "OPT2": {
        "only the first moment is bias-corrected": _corrected(lambda s: 1 - s.b1**s.n, lambda s: 1),
        "only the second moment is bias-corrected": _corrected(lambda s: 1, lambda s: 1 - s.b2**s.n),
        "the bias corrections of the two moments are swapped": _corrected(lambda s: 1 - s.b2**s.n, lambda s: 1 - s.b1**s.n),
        "the bias corrections are those of the previous step": _corrected(
            lambda s: 1 - s.b1 ** max(s.n - 1, 0), lambda s: 1 - s.b2 ** max(s.n - 1, 0)
        ),
        "the bias corrections are those of the next step": _corrected(lambda s: 1 - s.b1 ** (s.n + 1), lambda s: 1 - s.b2 ** (s.n + 1)),
        "the bias corrections are always those of step 1": _corrected(lambda s: 1 - s.b1, lambda s: 1 - s.b2),
        "the moments are multiplied by the bias corrections": _corrected(lambda s: 1 / (1 - s.b1**s.n), lambda s: 1 / (1 - s.b2**s.n)),
        "the second moment's bias correction is outside the root": _step(
            direction=lambda s: divide(s.first_hat, divide(root(s.second), s.number(1 - s.b2**s.n)) + s.epsilon)
        ),
    },
    "OPT3": {
        "weight decay is added to the first moment only": _step(first=lambda s: s.b1 * s.m + (1 - s.b1) * (s.g + s.decay * s.p)),
        "weight decay is divided by the root of the second moment": _step(
            moved=lambda s: s.p - s.rate * divide(s.first_hat + s.decay * s.p, root(s.second_hat) + s.epsilon)
        ),
    },
    "OPT6": {
        "weight decay is multiplied by the learning rate twice": _step(
            moved=lambda s: s.p - s.rate * s.direction - s.rate**2 * s.decay * s.p
        ),
        "weight decay is applied to the updated parameters": _step(moved=lambda s: (s.p - s.rate * s.direction) * (1 - s.rate * s.decay)),
        "weight decay is added instead of subtracted": _step(moved=lambda s: s.p - s.rate * (s.direction - s.decay * s.p)),
        "there is no weight decay": _step(moved=lambda s: s.p - s.rate * s.direction),
        "weight decay is half as large": _step(moved=lambda s: s.p - s.rate * (s.direction + s.decay / 2 * s.p)),
        "weight decay is twice as large": _step(moved=lambda s: s.p - s.rate * (s.direction + 2 * s.decay * s.p)),
        "weight decay subtracts a constant, rate * decay, as L1 does": _step(
            moved=lambda s: s.p - s.rate * (s.direction + s.decay * np.sign(s.p))
        ),
    },
    "OPT7": {
        "epsilon is added to the second moment before its bias correction": _step(
            direction=lambda s: divide(s.first_hat, root(divide(s.second + s.epsilon, s.number(1 - s.b2**s.n))))
        ),
        "epsilon^2 is added inside the root": _step(direction=lambda s: divide(s.first_hat, root(s.second_hat + s.number(s.epsilon) ** 2))),
        "the root is clamped to at least epsilon": _step(
            direction=lambda s: divide(s.first_hat, np.maximum(root(s.second_hat), s.epsilon))
        ),
        "there is no epsilon": _step(direction=lambda s: divide(s.first_hat, root(s.second_hat))),
    },
    "OPT8": {
        "the rate keeps growing after the warm-up": _rate(lambda n, d, w: d**-0.5 * n * w**-1.5),
        "the rate decays as 1 / n after the warm-up": _rate(lambda n, d, w: d**-0.5 * np.minimum(w**0.5 / n, n * w**-1.5)),
        "the rate decays as 1 / n^2 after the warm-up": _rate(lambda n, d, w: d**-0.5 * np.minimum(w**1.5 / n**2, n * w**-1.5)),
        "the rate decays with the number of steps since the warm-up": _rate(
            lambda n, d, w: d**-0.5 * np.where(n > w, np.maximum(n - w, 1) ** -0.5, n * w**-1.5)
        ),
    },
}
