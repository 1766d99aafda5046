"""The family of equalities: another value, perhaps times a number, or a function of one, in place of a value."""

from collections.abc import Callable, Iterator

import numpy as np

from .answered import Answered
from .change import Alter, Change, factor_words, number, own
from .meaning import of_equality
from .steps import Step

__all__ = ["equalities"]


def equalities(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes equalities. target: what the changed value must be, if that is known."""
    shape = step.given.shape if target is None else target.shape
    exact = answered.expectation.dtype.kind in "biu"
    for value in answered.run.values:
        if value.array.shape != shape or np.array_equal(value.array, step.given, equal_nan=True):
            continue
        if exact or value.array.dtype.kind in "biu":
            if exact:
                yield Change("equals", value.words, 90, _value(value.words, ""))
            continue
        factor = 1.0 if target is None else answered.factor(target, value.array)
        for plain in factor_words(answered, factor) if factor is not None else ():
            if plain:
                yield Change("equals", f"{plain} times {value.words}", 80, _value(value.words, plain))
            else:
                yield Change("equals", value.words, 90, _value(value.words, ""), of_equality(answered, step, value))
        if value.role in ("input", "computed") and (target is not None or "activation` is given" in value.words):
            yield from (Change("equals", f"{name} of {value.words}", 85, _function(value.words, each)) for name, each in FUNCTIONS.items())
        if value.role != "parameter" and len(shape) == 4 and "logits" in value.words:
            yield from (Change("equals", f"{name} of {value.words}", 88, _function(value.words, each)) for name, each in OF_LOGITS.items())
    if exact:
        yield Change("equals", "the opposite of {}", 92, own(lambda value: 1.0 - value))
    else:
        yield from (Change("equals", f"{name} of {{}}", 88, own(function)) for name, function in FUNCTIONS.items())
    yield Change("equals", "1/n everywhere, n the length of the last axis", 89, own(_uniform))
    if target is not None and len(found := answered.select(target)) and np.ptp(found) == 0:
        constant = float(found[0])
        shown = str(bool(constant)) if answered.expectation.dtype.kind == "b" else f"{constant:.15g}"
        yield Change("equals", f"{shown} everywhere", 86 if constant else 95, own(lambda value: np.full(value.shape, constant)))


def _value(name: str, plain: str) -> Alter:
    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        value, factor = answered.run.named.get(name), number(answered, plain)
        return None if value is None or factor is None else factor * value

    return alter


def _function(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Alter:
    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        value = answered.run.named.get(name)
        return None if value is None else function(value)

    return alter


def _softmax(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    def function(x: np.ndarray) -> np.ndarray:
        largest = np.max(x, axis, keepdims=True)
        exponential = np.exp(x - np.where(np.isfinite(largest), largest, 0.0))
        total = exponential.sum(axis, keepdims=True)
        return exponential / np.where(total, total, 1.0)  # where nothing may be attended to there is nothing

    return function


def _uniform(x: np.ndarray) -> np.ndarray:
    return np.full(x.shape, 1 / x.shape[-1])


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the softmax over the last axis": _softmax(-1),
    "the log-softmax over the last axis": _log_softmax,
    "the logistic sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "the logarithm": np.log,
    "the absolute value": np.abs,
    "the square": np.square,
    "the rows of L2 norm 1": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
}
_OVER = {f"the softmax over the {name}": _softmax(axis) for name, axis in (("queries", -2), ("heads", -3), ("batch", -4))}
OF_LOGITS = _OVER | {name: FUNCTIONS[name] for name in ("the logistic sigmoid", "exp", "relu", "the softmax over the last axis")}
