"""A change of one value: of the output itself, or of what one of the last steps is given."""

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
    """words: what stands instead of the value, with {} for the value itself. meaning: what that is, where it is known."""

    kind: str
    words: str
    specificity: int
    alter: Alter
    meaning: str = ""


def own(function: Callable[[np.ndarray], np.ndarray]) -> Alter:
    """A function of the value alone."""
    return lambda answered, given: function(given)


def slack(answered: Answered) -> float:
    """By how much of itself a number may differ that was taken from an answer."""
    return SLACK[answered.expectation.dtype.itemsize]


def factor_words(answered: Answered, factor: float) -> list[str]:
    """The words of a number: those of the config that it may be, plain numbers first, or its digits; empty ones for 1."""
    if abs(factor - 1) < slack(answered):
        return [""]
    numbers = named(answered.case).items()
    return [name for name, number in numbers if abs(factor - number) < slack(answered) * abs(number)] or [f"{factor:.15g}"]


def number(answered: Answered, text: str) -> float | None:
    """The number that the words are on a case; None where it has none of that name."""
    if not text:
        return 1.0
    if text in (numbers := named(answered.case)):
        return numbers[text]
    try:
        return float(text)
    except ValueError:
        return None
