"""A symptom, and the prediction that becomes one if every case confirms it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .answered import Answered

STRONG = 80  # the specificity from which a symptom says what the whole output is
Predicted = np.ndarray | tuple[np.ndarray, np.ndarray] | None  # the output, or the output and a mask of the elements that are meant


@dataclass(frozen=True)
class Symptom:
    """What a port's output is in terms of the reference and the inputs: a sentence that was verified on the cases.

    kind: the family. specificity: how much the sentence says.
    """

    kind: str
    sentence: str
    specificity: int

    @property
    def complete(self) -> bool:
        """Whether it says what the whole output is."""
        return self.specificity >= STRONG


@dataclass(frozen=True)
class Prediction:
    """A symptom that is yet to be verified: from a case it predicts the port's output.

    sentence: its identity; `{output}` stands for the output's name, `your output`. predict: None if it says nothing of a case.
    """

    kind: str
    sentence: str
    specificity: int
    predict: Callable[[Answered], Predicted]
