"""The families of sums, products and equalities: a value plus or minus another one, a value times a number, and in place of a value another
one, perhaps times a number, or a function of one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from .answered import Answered
from .change import Alter, Change, factor_words, named, number, of_equality, of_sum, own
from .run_values import Step, Value


def differences(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes them. target: what the changed value must be, if that is known."""
    if (target is not None and target.shape != step.given.shape) or answered.expectation.dtype.kind == "b":
        return
    for value in answered.run.values:
        if value.array.dtype.kind != "f" or not _broadcasts(value.array, step.given):
            continue
        if target is not None:
            if (factor := answered.factor(target - step.given, value.array)) is not None:
                yield from (_sum(step, value, words) for words in factor_words(answered, factor))
        elif value.array.shape == step.given.shape or value.role == "parameter":
            yield from (_sum(step, value, plain) for plain in ("", "-1"))
    if target is not None and target.size > 1:
        found = answered.select(target - step.given)
        constant = float(found[0])
        if np.isfinite(constant) and constant and np.ptp(found) <= answered.allowed(step.given):
            yield Change("difference", f"{{}} plus {constant:.15g}, the same everywhere", 80, own(lambda given: given + constant))


def replaced(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes another value in place of either term of the sum of a sub-layer and its residual."""
    if not step.sublayer:
        return
    residual, output = f"the residual of `{step.sublayer}`", f"the output of `{step.sublayer}_dropout`"
    for value in answered.run.values:
        if value.array.shape == step.given.shape and value.array.dtype.kind == "f":
            for part in (residual, output):
                instead = _of_named(lambda given, one, other: given - one + other, part, value.words)
                yield Change("difference", f"it with {value.words} for {part}", 86, instead)


def _of_named(function: Callable[..., np.ndarray], *names: str) -> Alter:
    """A change by a function of the value and of the values of these names."""

    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        values = [answered.run.named.get(name) for name in names]
        return None if any(value is None for value in values) else function(given, *values)

    return alter


def _broadcasts(value: np.ndarray, given: np.ndarray) -> bool:
    """Whether a value broadcasts to the input by its last axes, and has more than one element along the last one."""
    return 0 < value.ndim <= given.ndim and value.shape == given.shape[given.ndim - value.ndim :] and given.shape[-1] > 1


def _sum(step: Step, value: Value, plain: str) -> Change:
    """Adds a multiple of another value."""
    name = value.words
    sign = "minus" if plain.startswith("-") else "plus"
    times = f"{plain.removeprefix('-')} times " if plain not in ("", "-1") else ""

    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        value, factor = answered.run.named.get(name), number(answered, plain)
        if value is None or factor is None:
            return given  # there is nothing to add
        return given + factor * value if _broadcasts(value, given) else None

    return Change("difference", f"{{}} {sign} {times}{name}", 76 if times else 86, alter, "" if times else of_sum(step, value, sign))


def factors(answered: Answered, step: Step, target: np.ndarray | None) -> Iterator[Change]:
    """Proposes them. target: what the changed value must be, if that is known."""
    if answered.expectation.dtype.kind in "biu" or (target is not None and target.shape != step.given.shape):
        return
    if target is None:
        found = list(named(answered.case))
    else:
        factor = answered.factor(target, step.given)
        found = [] if factor is None else factor_words(answered, factor)
    for plain in filter(None, found):
        meaning = _scaling(plain) if step.words.endswith("softmax` of {}") else ""
        rank = (92 if plain in named(answered.case) else 82) + bool(meaning)
        yield Change("factor", f"{{}} times {plain}", rank, _times(plain), meaning)


def _scaling(plain: str) -> str:
    """What a factor of the attention's logits means, which are divided by sqrt(key_size)."""
    if plain == "sqrt(key_size)":
        return "the logits are not divided by sqrt(key_size)"
    if plain == "1/sqrt(key_size)":
        return "the logits are divided by sqrt(key_size) twice"
    if plain.startswith("sqrt(key_size / "):
        return f"the logits are divided by sqrt({plain.removeprefix('sqrt(key_size / ').removesuffix(')').strip('()')})"
    return ""


def _times(plain: str) -> Alter:
    def alter(answered: Answered, given: np.ndarray) -> np.ndarray | None:
        factor = number(answered, plain)
        return None if factor is None else factor * given

    return alter


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
    return _of_named(lambda given, value: function(value), name)


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
