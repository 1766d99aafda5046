"""What could be wrong: defects and settings, and what they make of some cases."""

import functools
from collections.abc import Iterable

import numpy as np

from ..case import Case
from ..defects import Defect
from ..reference import tolerance
from ..reference.components import DECODING, FORWARD, TRAINING, forward_of
from . import altered
from .altered import Combination

__all__ = ["Hypotheses", "candidates"]


def candidates(probes: Iterable[Case], alterations: Iterable[Defect]) -> list[Defect]:
    """Those that can be meant where these probes fail.

    Outputs are altered by no defect of a gradient. Gradients are run where the outputs are right, so that what alters outputs is not
    meant; it is what alters a gradient alone, or the training.
    """
    components = {probe.component for probe in probes}
    backward = all(map(forward_of, components))
    within = FORWARD.keys() | {name for table in (DECODING, TRAINING) if components & table.keys() for name in table}
    return [one for one in alterations if (one.component in TRAINING or forward_of(one.component) if backward else one.component in within)]


class Hypotheses:
    """Defects and settings, and what the reference altered by them answers to some probes; each answer is computed once and kept.

    probes: cases in the dtype in which a port answered them. What alters no probe is left out. What draws at random equals no answer and is
    in `random` alone.
    """

    def __init__(self, probes: Iterable[Case], defects: Iterable[Defect], settings: Iterable[Defect] = ()) -> None:
        self.probes = list(probes)
        self.clean = [tolerance.expect(case) for case in self.probes]
        self.answer = functools.cache(self._answer)
        altering = [defect for defect in defects if self._alters(defect)]
        self.defects = [defect for defect in altering if not defect.random]
        self.random = [defect for defect in altering if defect.random]
        self.settings = [setting for setting in settings if self._alters(setting)]

    def _answer(self, combination: Combination, index: int) -> dict[str, np.ndarray] | None:
        """The altered reference's float64 outputs of a probe; None where it fails."""
        return altered.answer(combination, self.probes[index].at("float64"))

    def _alters(self, one: Defect) -> bool:
        for index, probe in enumerate(self.probes):
            predicted, clean = self.answer((one,), index), {name: clean.reference for name, clean in self.clean[index].items()}
            if predicted is None or altered.rounds((one,), probe) or altered.differ(predicted, clean):
                return True
        return False
