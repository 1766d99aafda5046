"""Symptoms about sums, products and equalities.

The output is the reference plus or minus a value of its run, the reference times a number, or
another value, times a number or after a function.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

import numpy as np

from .answered import Answered, Predicted, Prediction, of_reference
from .run_values import Value

SLACK = {8: 1e-11, 4: 1e-5, 2: 0.03}  # relative error of a number computed from an output, by the dtype's bytes
EXPLAINED = 5  # additional specificity of a prediction with a known meaning
ADDED = {"plus": "is added twice", "minus": "is left out"}


def differences(answered: Answered) -> Iterator[Prediction]:
    """Proposes an added multiple of a value, or an added constant."""
    if not answered.shaped or answered.expectation.dtype.kind == "b":
        return
    added = answered.got - answered.reference
    for value in answered.run.values:
        fits = value.array.dtype.kind == "f" and _broadcasts(value.array, added)
        if fits and (factor := answered.factor(added, value.array)) is not None:
            yield from (_sum(value, plain) for plain in _factor_words(answered, factor))
    found = answered.select(added)
    constant = float(found[0]) if added.size > 1 else 0.0
    if np.isfinite(constant) and constant and np.ptp(found) <= answered.allowed(answered.reference):
        sentence = f"{{output}} minus the reference is {constant:.15g}, the same everywhere"
        yield Prediction("difference", sentence, 80, lambda answered: answered.reference + constant)


def _broadcasts(value: np.ndarray, given: np.ndarray) -> bool:
    """Whether a value broadcasts along the output's last axes, with a last axis above 1."""
    return 0 < value.ndim <= given.ndim and value.shape == given.shape[given.ndim - value.ndim :] and given.shape[-1] > 1


def _sum(value: Value, plain: str) -> Prediction:
    """Predicts the reference plus a multiple of a value; extra biases have a known meaning."""
    sign = "minus" if plain.startswith("-") else "plus"
    times = f"{plain.removeprefix('-')} times " if plain not in ("", "-1") else ""
    known = not times and value.role == "parameter" and value.words.endswith(("bias`", "offset`"))
    multiple = _times(plain, value.words)

    def predict(answered: Answered) -> Predicted:
        found = multiple(answered)
        if found is None:
            return answered.reference  # nothing to add
        return answered.reference + found if _broadcasts(found, answered.reference) else None

    sentence = f"{{output}} minus the reference is {'minus ' * (sign == 'minus')}{times}{value.words}"
    return Prediction("difference", sentence + f": it {ADDED[sign]}" * known, (76 if times else 86) + EXPLAINED * known, predict)


def factors(answered: Answered) -> Iterator[Prediction]:
    """Proposes factors of the reference."""
    if answered.expectation.dtype.kind in "biu" or not answered.shaped:
        return
    factor = answered.factor(answered.got, answered.reference)
    for plain in filter(None, [] if factor is None else _factor_words(answered, factor)):
        yield Prediction("factor", f"{{output}} is the reference times {plain}", 92 if plain in answered.run.numbers else 82, _times(plain))


def equalities(answered: Answered) -> Iterator[Prediction]:
    """Proposes other values, their multiples and functions, and constants."""
    got, exact = answered.got, answered.expectation.dtype.kind in "biu"
    for value in answered.run.values:
        if value.array.shape != got.shape or np.array_equal(value.array, answered.reference, equal_nan=True):
            continue
        if exact or value.array.dtype.kind in "biu":
            if exact:
                yield Prediction("equals", f"{{output}} is {value.words}", 90, _times("", value.words))
            continue
        factor = answered.factor(got, value.array)
        for plain in _factor_words(answered, factor) if factor is not None else ():
            meaning = "" if plain else _left_out(answered, value)
            sentence = f"{{output}} is {f'{plain} times ' * bool(plain)}{value.words}{f': {meaning}' * bool(meaning)}"
            yield Prediction("equals", sentence, (80 if plain else 90) + EXPLAINED * bool(meaning), _times(plain, value.words))
        for name, function in FUNCTIONS.items() if value.role in ("input", "computed") else ():
            yield Prediction("equals", f"{{output}} is {name} of {value.words}", 85, _of_named(function, value.words))
    if exact:
        yield of_reference("equals", "the opposite of {}", 92, lambda value: 1.0 - value)
    else:
        yield from (of_reference("equals", f"{name} of {{}}", 88, function) for name, function in FUNCTIONS.items())
    yield of_reference(
        "equals", "1/n everywhere, where n is the length of the last axis", 89, lambda value: np.full(value.shape, 1 / value.shape[-1])
    )
    if len(found := answered.select(got)) and np.ptp(found) == 0:
        constant = float(found[0])
        shown = str(bool(constant)) if answered.expectation.dtype.kind == "b" else f"{constant:.15g}"
        yield of_reference("equals", f"{shown} everywhere", 86 if constant else 95, lambda value: np.full(value.shape, constant))


def _left_out(answered: Answered, value: Value) -> str:
    """The part that is left out, if the output is the part's input instead of its output."""
    given = re.fullmatch(r"the `\w+` that `(.+)` is given", value.words)
    output = answered.run.named.get(f"the output of `{given[1]}`") if given else None
    return f"`{given[1]}` is left out" if given and output is not None and np.array_equal(output, answered.reference) else ""


def _factor_words(answered: Answered, factor: float) -> list[str]:
    """The words for a number: names that it may have, or its digits; empty for 1."""
    slack = SLACK[answered.expectation.dtype.itemsize]
    if abs(factor - 1) < slack:
        return [""]
    numbers = answered.run.numbers.items()
    return [name for name, number in numbers if abs(factor - number) < slack * abs(number)] or [f"{factor:.15g}"]


def _number(answered: Answered, text: str) -> float | None:
    """The number that words stand for on a case, 1 without words; None if it has none."""
    if not text or text in answered.run.numbers:
        return answered.run.numbers.get(text, 1.0)
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def _times(plain: str, name: str = "") -> Callable[[Answered], np.ndarray | None]:
    """Predicts a multiple of the reference, or of the value of that name."""

    def predict(answered: Answered) -> np.ndarray | None:
        value, factor = answered.run.named.get(name) if name else answered.reference, _number(answered, plain)
        return None if value is None or factor is None else factor * value

    return predict


def _of_named(function: Callable[[np.ndarray], np.ndarray], name: str) -> Callable[[Answered], np.ndarray | None]:
    """Predicts a function of the value of that name."""

    def predict(answered: Answered) -> np.ndarray | None:
        value = answered.run.named.get(name)
        return None if value is None else function(value)

    return predict


def _softmax(x: np.ndarray) -> np.ndarray:
    largest = np.max(x, -1, keepdims=True)
    exponential = np.exp(x - np.where(np.isfinite(largest), largest, 0.0))
    total = exponential.sum(-1, keepdims=True)
    return exponential / np.where(total, total, 1.0)  # zeros in rows without keys


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the softmax over the last axis": _softmax,
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
