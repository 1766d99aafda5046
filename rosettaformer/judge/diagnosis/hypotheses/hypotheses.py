"""The list of all hypotheses, most likely first, and the altered references' outputs.

Hypotheses are known bugs and settings of the catalogue, dataflow changes, each of these at one
place, and ignored inputs. Constants are not listed: their values are fitted to outputs.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import Site, places, sites
from ...expectation.components import DECODING, FORWARD, TRAINING, forward_of
from ...expectation.expectation_store import Store
from .. import altered
from ..altered import Combination
from ..findings import Deadline
from .dataflow import dataflow_changes
from .inputs import ignored


def candidates(probes: Iterable[Case], alterations: Iterable[Alteration]) -> list[Alteration]:
    """The alterations that can explain failures of these probes.

    Bugs in gradients do not change outputs, and gradients run only if the outputs are correct: only
    alterations of gradients or of training can explain them.
    """
    components = {probe.component for probe in probes}
    backward = all(map(forward_of, components))
    within = FORWARD.keys() | {name for table in (DECODING, TRAINING) if components & table.keys() for name in table}
    return [one for one in alterations if (one.component in TRAINING or forward_of(one.component) if backward else one.component in within)]


KEPT, FEWEST = 1 << 28, 4  # bytes of cached outputs, and their number at least
# by component, the function whose calls show it; attention calls parts of `rotary_embedding`
_FUNCTIONS = {component: f"{one.module}.{component}" for component, one in FORWARD.items()} | {"rotary_embedding": "rotary.rotated"}


class Hypotheses:
    """The alterations that a port may have, and the altered references' outputs, computed on demand
    and cached.

    probes: cases in the dtype in which the port answered them. Known bugs and settings without an
    effect on any probe are left out; random ones match no output and are only in `random`.
    deadline: raises `TimeIsUp` once it has passed. store: keeps the probes' expectations.
    """

    def __init__(
        self, probes: Iterable[Case], defects: Iterable[Alteration], settings: Iterable[Alteration] = (), deadline: Deadline | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.probes, self.deadline = list(probes), deadline or Deadline()
        self._doubles = [probe.at("float64") for probe in self.probes]
        self.clean = list(map((store or Store()).expect, self.probes))
        self._everywhere: dict[Alteration, Alteration] = {}  # an alteration at one place -> the same alteration everywhere
        size = max((sum(one.reference.nbytes for one in clean.values()) for clean in self.clean), default=0)
        self.answer = functools.lru_cache(max(FEWEST, KEPT // max(1, size)))(self._answer)
        self.alters = functools.cache(self._altering)
        self._defects, self._settings = ([each for one in kind for each in one.hypotheses] for kind in (defects, settings))
        self._functions = {function for one in (*self._defects, *self._settings) for function in one.replaces} | set(_FUNCTIONS.values())

    @functools.cached_property
    def defects(self) -> list[Alteration]:
        """The deterministic known bugs and their variants that alter a probe."""
        return [defect for defect in self._defects if not defect.random and self._alters(defect)]

    def called(self, id_: str) -> list[Alteration]:
        """The known bug of that id, whether or not it alters a probe."""
        return [defect for defect in self._defects if defect.id == id_ and not defect.variant]

    @functools.cached_property
    def ignored(self) -> dict[str, Alteration]:
        """The alterations that ignore an input of the probes, by input."""
        return ignored(self.probes)

    @functools.cached_property
    def random(self) -> list[Alteration]:
        """The known bugs that make a probe random."""
        return [defect for defect in self._defects if defect.random and self._alters(defect)]

    @functools.cached_property
    def settings(self) -> list[Alteration]:
        """The settings that alter a probe."""
        return [setting for setting in self._settings if self._alters(setting)]

    def tiers(self, located: bool = True) -> Iterator[Sequence[Alteration]]:
        """All hypotheses, most likely first: known bugs, settings, dataflow changes, and each of
        them at one place.

        The first two tiers include everything that replaces a function called by a probe, whether
        or not it has an effect: one probe shows that an alteration without effect explains nothing,
        while only all probes show that it has no effect.
        """
        yield self._called(self._defects)
        yield self._called(self._settings)
        yield list(self.dataflow)
        if located:
            yield self.located

    @functools.cached_property
    def dataflow(self) -> Mapping[Alteration, list[list[Site]]]:
        """The dataflow changes, with their sites in each probe."""
        return dataflow_changes(self._doubles) if self._forward else {}

    @functools.cached_property
    def located(self) -> list[Alteration]:
        """Known bugs, settings and dataflow changes at one place of the model.

        Leaves out duplicates: a change in `layers.*.feed_forward` at `layers.0` is one in
        `layers.0.feed_forward`.
        """
        seen = {self._identity(one) for one in self.dataflow}
        found = self.at_places((*self.defects, *self.settings))
        for one in self.at_places(self.dataflow):
            if (identity := self._identity(one)) not in seen:
                seen.add(identity)
                found.append(one)
        return found

    def _identity(self, change: Alteration) -> tuple[str, tuple[frozenset[Site], ...]]:
        """The id of a dataflow change and its sites in each probe."""
        return change.id, tuple(map(frozenset, self.where(change)))

    def at_places(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """Each of these alterations at every place in the model."""
        found: list[Alteration] = []
        for one in alterations if self._forward else ():
            placed = [dataclasses.replace(one, place=place) for place in places(self.where(one))]
            self._everywhere |= dict.fromkeys(placed, one)
            found += placed
        return found

    def where(self, one: Alteration) -> list[list[Site]]:
        """The sites of an alteration, probe by probe."""
        every = self._everywhere.get(one, one)
        runs = self.dataflow.get(every) or self.sites_of(every)
        return [[site for site in run if one.place is None or one.place.holds(site)] for run in runs]

    def sites_of(self, one: Alteration) -> list[list[Site]]:
        """The sites of the functions that an alteration replaces, probe by probe."""
        if further := set(one.replaces) - self._functions:
            self._functions |= further
            self._sites = [run | sites(case, further) for case, run in zip(self._doubles, self._sites, strict=True)]
        return [[site for function in one.replaces for site in run.get(function, ())] for run in self._sites]

    @functools.cached_property
    def _sites(self) -> list[dict[str, list[Site]]]:
        """The calls of the replaced functions in every probe's run, by function."""
        return [sites(case, self._functions) for case in self._doubles]

    @property
    def _forward(self) -> bool:
        return all(probe.component in FORWARD for probe in self.probes)

    def _answer(self, combination: Combination, index: int) -> dict[str, np.ndarray] | None:
        """The altered reference's float64 outputs of a probe; None if it raises."""
        self.deadline.check()
        return altered.answer(combination, self._doubles[index])

    def _called(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """The deterministic alterations that change rounding or a function that a probe calls."""
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
        """False for bugs of a smaller component whose functions the probe calls without it."""
        order, probe = list(FORWARD), self.probes[index].component
        if probe not in FORWARD or one.component not in order[: order.index("encoder_layer")]:
            return True
        return order.index(one.component) >= order.index(probe) or _FUNCTIONS[one.component] in self._sites[index]
