"""Changes of one value: of the output, or of the input of one of the last steps."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .answered import Answered
from .numbers import named

__all__ = ["Alter", "Change", "factor_words", "number", "own", "slack"]

SLACK = {8: 1e-11, 4: 1e-5, 2: 0.03}  # by the dtype's bytes
Alter = Callable[[Answered, np.ndarray], np.ndarray | None]  # of a case and the value to be altered; None where there is no such value


@dataclass(frozen=True)
class Change:
    """Another value in place of one. words: the other value, with {} for the one. meaning: what the change means, if that is known."""

    kind: str
    words: str
    specificity: int
    alter: Alter
    meaning: str = ""


def own(function: Callable[[np.ndarray], np.ndarray]) -> Alter:
    """A change by a function of the value."""
    return lambda answered, given: function(given)


def slack(answered: Answered) -> float:
    """The relative error of a number that was computed from an answer."""
    return SLACK[answered.expectation.dtype.itemsize]


def factor_words(answered: Answered, factor: float) -> list[str]:
    """The words for a number: the sizes of the config that it may be, plain numbers first, or its digits; empty for 1."""
    if abs(factor - 1) < slack(answered):
        return [""]
    numbers = named(answered.case).items()
    return [name for name, number in numbers if abs(factor - number) < slack(answered) * abs(number)] or [f"{factor:.15g}"]


def number(answered: Answered, text: str) -> float | None:
    """The number that the words mean on a case; None if the case has no number of that name."""
    if not text:
        return 1.0
    if text in (numbers := named(answered.case)):
        return numbers[text]
    try:
        return float(text)
    except ValueError:
        return None
