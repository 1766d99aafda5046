"""What could be wrong: defects and settings, and what they make of some cases."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..case import Case
from ..catalogue import Alteration
from ..catalogue.place import Site, places, sites
from ..reference.components import DECODING, FORWARD, TRAINING, forward_of
from ..reference.store import Store
from . import altered
from .altered import Combination
from .deadline import Deadline
from .wiring import wirings

__all__ = ["Hypotheses", "candidates"]


def candidates(probes: Iterable[Case], alterations: Iterable[Alteration]) -> list[Alteration]:
    """Those that can be meant where these probes fail.

    Outputs are altered by no defect of a gradient. Gradients are run where the outputs are right, so that what alters outputs is not
    meant; it is what alters a gradient alone, or the training.
    """
    components = {probe.component for probe in probes}
    backward = all(map(forward_of, components))
    within = FORWARD.keys() | {name for table in (DECODING, TRAINING) if components & table.keys() for name in table}
    return [one for one in alterations if (one.component in TRAINING or forward_of(one.component) if backward else one.component in within)]


_FUNCTIONS = {component: f"{module}.{component}" for component, (module, _) in FORWARD.items()}


class Hypotheses:
    """What could be wrong, and what the reference altered by it answers to some probes; each is computed when it is asked, and kept.

    probes: cases in the dtype in which a port answered them. Of the defects and settings that are given, what alters no probe is left out.
    What draws at random equals no answer and is in `random` alone. deadline: when nothing is computed any more, with `TimeIsUp`. store:
    where the probes' expectations are kept.
    """

    def __init__(
        self, probes: Iterable[Case], defects: Iterable[Alteration], settings: Iterable[Alteration] = (), deadline: Deadline | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.probes, self.deadline = list(probes), deadline or Deadline()
        self._doubles = [probe.at("float64") for probe in self.probes]
        self.clean = list(map((store or Store()).expect, self.probes))
        self._everywhere: dict[Alteration, Alteration] = {}  # of an alteration at one place that at all
        self.answer = functools.cache(self._answer)
        self.alters = functools.cache(self._altering)
        self._defects, self._settings = ([each for one in kind for each in one.hypotheses] for kind in (defects, settings))
        self._functions = {function for one in (*self._defects, *self._settings) for function in one.replaces} | set(_FUNCTIONS.values())

    @functools.cached_property
    def defects(self) -> list[Alteration]:
        """The defects, and their variants, that alter a probe, each time in the same way."""
        return [defect for defect in self._defects if not defect.random and self._alters(defect)]

    @functools.cached_property
    def random(self) -> list[Alteration]:
        """The defects that draw at random in a probe."""
        return [defect for defect in self._defects if defect.random and self._alters(defect)]

    @functools.cached_property
    def settings(self) -> list[Alteration]:
        """The settings that alter a probe."""
        return [setting for setting in self._settings if self._alters(setting)]

    def tiers(self, located: bool = True) -> Iterator[Sequence[Alteration]]:
        """All that could be wrong, most likely first: defects, settings, another wiring, and each at one place alone.

        Of defects and settings all that a probe calls, whether they alter it or not: what does not explains nothing that fails, and one
        probe tells, where all of them must be run to know that nothing is altered.
        """
        yield self._called(self._defects)
        yield self._called(self._settings)
        yield list(self.wirings)
        if located:
            yield self.located

    @functools.cached_property
    def wirings(self) -> Mapping[Alteration, list[list[Site]]]:
        """How the parts of the model could be wired otherwise, and at which sites, probe by probe."""
        return wirings(self._doubles) if self._forward else {}

    @functools.cached_property
    def located(self) -> list[Alteration]:
        """Defects, settings and wirings at one place of the model alone."""
        return self.at_places((*self.defects, *self.settings, *self.wirings))

    def at_places(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """Each of these at every place that is not all of the model."""
        found: list[Alteration] = []
        for one in alterations if self._forward else ():
            placed = [dataclasses.replace(one, place=place) for place in places(self.where(one))]
            self._everywhere |= dict.fromkeys(placed, one)
            found += placed
        return found

    def where(self, one: Alteration) -> list[list[Site]]:
        """The sites at which an alteration is, probe by probe."""
        every = self._everywhere.get(one, one)
        runs = self.wirings.get(every) or self.sites_of(every)
        return [[site for site in run if one.place is None or one.place.holds(site)] for run in runs]

    def sites_of(self, one: Alteration) -> list[list[Site]]:
        """The sites of the functions that an alteration replaces, probe by probe."""
        if further := set(one.replaces) - self._functions:
            self._functions |= further
            self._sites = [run | sites(case, further) for case, run in zip(self._doubles, self._sites, strict=True)]
        return [[site for function in one.replaces for site in run.get(function, ())] for run in self._sites]

    @functools.cached_property
    def _sites(self) -> list[dict[str, list[Site]]]:
        """Where every probe's run calls the functions that are replaced, by function."""
        return [sites(case, self._functions) for case in self._doubles]

    @property
    def _forward(self) -> bool:
        return all(probe.component in FORWARD for probe in self.probes)

    def _answer(self, combination: Combination, index: int) -> dict[str, np.ndarray] | None:
        """The altered reference's float64 outputs of a probe; None where it fails."""
        self.deadline.check()
        return altered.answer(combination, self._doubles[index])

    def _called(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """Those that replace what some probe calls, or that round, and that are not random."""
        return [one for one in alterations if not one.random and any(self._calls(one, index) for index in range(len(self.probes)))]

    def _calls(self, one: Alteration, index: int) -> bool:
        if altered.rounds((one,), self.probes[index]):
            return True
        return self._meant(one, index) and any(function in self._sites[index] for function in one.replaces)

    def _alters(self, one: Alteration) -> bool:
        return any(self.alters(one, index) for index in range(len(self.probes)))

    def _altering(self, one: Alteration, index: int) -> bool:
        if not self._calls(one, index):
            return False
        if altered.rounds((one,), self.probes[index]):
            return True
        predicted, clean = self.answer((one,), index), {name: clean.reference for name, clean in self.clean[index].items()}
        return predicted is None or altered.differ(predicted, clean)

    def _meant(self, one: Alteration, index: int) -> bool:
        """False for a defect of a smaller component that is no part of the probe's, although something that it replaces is."""
        order, probe = list(FORWARD), self.probes[index].component
        if probe not in FORWARD or one.component not in order[: order.index("encoder_layer")]:
            return True
        return order.index(one.component) >= order.index(probe) or _FUNCTIONS[one.component] in self._sites[index]
