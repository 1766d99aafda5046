"""What is wrong with the outputs of a port on a mesh: what they are of those that one device gives."""

from collections.abc import Mapping

import numpy as np

from ..case import Case
from ..reference.tolerance import Expectation


def fingerprint(case: Case, expected: Mapping[str, Expectation], given: Mapping[str, np.ndarray]) -> str:
    """Returns a sentence on the outputs that a port gave of a case on `case.mesh` and that differ from the expected ones: which reduction,
    gather or split is wrong, as the outputs show it. Empty if they show nothing that is known.
    """
    return ""
