"""A symptom, and what a family proposes before it is verified."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .answered import Answered

__all__ = ["Predicted", "Prediction", "Symptom"]

# what an output is, and where it is said: everywhere without a mask; None of a case of which nothing can be said
STRONG = 80  # the specificity from which a symptom says all of the output
Predicted = np.ndarray | tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class Symptom:
    """What a port's output is in terms of the reference and the inputs: a sentence that was verified on the cases.

    kind: the family. specificity: the more it says, the larger.
    """

    kind: str
    sentence: str
    specificity: int

    @property
    def complete(self) -> bool:
        """Whether it says all of the output."""
        return self.specificity >= STRONG


@dataclass(frozen=True)
class Prediction:
    """A symptom that is yet to be verified: from a case it predicts the port's output.

    sentence: is its identity; `{output}` stands for the output's name, `your output`.
    """

    kind: str
    sentence: str
    specificity: int
    predict: Callable[[Answered], Predicted]
