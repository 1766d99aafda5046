"""The one list of what a port may have done otherwise, likeliest first, and the altered references' answers to some cases.

Its kinds are the catalogue's defects and settings, changes of the dataflow, each of them at one place, and ignored inputs. Constants have
no list: their values are fitted to answers.
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

    No defect of a gradient alters outputs. Gradients are run if the outputs are right, so that only alterations of gradients or of the
    training can explain them.
    """
    components = {probe.component for probe in probes}
    backward = all(map(forward_of, components))
    within = FORWARD.keys() | {name for table in (DECODING, TRAINING) if components & table.keys() for name in table}
    return [one for one in alterations if (one.component in TRAINING or forward_of(one.component) if backward else one.component in within)]


KEPT, FEWEST = 1 << 28, 4  # bytes of answers that are kept, and how many at least
# by component the function whose calls show that a run contains it; attention rotates by what `rotary_embedding` consists of
_FUNCTIONS = {component: f"{one.module}.{component}" for component, one in FORWARD.items()} | {"rotary_embedding": "rotary.rotated"}


class Hypotheses:
    """The alterations that a port may have, and the altered references' answers to some probes, computed on demand and cached.

    probes: cases in the dtype in which a port answered them. Defects and settings that alter no probe are left out; those that draw at
    random equal no answer, and are only in `random`. deadline: raises `TimeIsUp` after it. store: holds the probes' expectations.
    """

    def __init__(
        self, probes: Iterable[Case], defects: Iterable[Alteration], settings: Iterable[Alteration] = (), deadline: Deadline | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.probes, self.deadline = list(probes), deadline or Deadline()
        self._doubles = [probe.at("float64") for probe in self.probes]
        self.clean = list(map((store or Store()).expect, self.probes))
        self._everywhere: dict[Alteration, Alteration] = {}  # an alteration at one place -> the same at all places
        size = max((sum(one.reference.nbytes for one in clean.values()) for clean in self.clean), default=0)
        self.answer = functools.lru_cache(max(FEWEST, KEPT // max(1, size)))(self._answer)
        self.alters = functools.cache(self._altering)
        self._defects, self._settings = ([each for one in kind for each in one.hypotheses] for kind in (defects, settings))
        self._functions = {function for one in (*self._defects, *self._settings) for function in one.replaces} | set(_FUNCTIONS.values())

    @functools.cached_property
    def defects(self) -> list[Alteration]:
        """The deterministic defects, and their variants, that alter a probe."""
        return [defect for defect in self._defects if not defect.random and self._alters(defect)]

    def called(self, id_: str) -> list[Alteration]:
        """The defect of that id, whether it alters a probe or not."""
        return [defect for defect in self._defects if defect.id == id_ and not defect.variant]

    @functools.cached_property
    def ignored(self) -> dict[str, Alteration]:
        """The alterations that ignore an input of the probes, by its name."""
        return ignored(self.probes)

    @functools.cached_property
    def random(self) -> list[Alteration]:
        """The defects that draw at random in a probe."""
        return [defect for defect in self._defects if defect.random and self._alters(defect)]

    @functools.cached_property
    def settings(self) -> list[Alteration]:
        """The settings that alter a probe."""
        return [setting for setting in self._settings if self._alters(setting)]

    def tiers(self, located: bool = True) -> Iterator[Sequence[Alteration]]:
        """All hypotheses, most likely first: defects, settings, changes of the dataflow, and each of them at one place.

        The first two tiers hold whatever replaces a function that a probe calls, altering or not: an alteration without effect explains no
        failure, which one probe shows, while all probes must be run to know that it has no effect.
        """
        yield self._called(self._defects)
        yield self._called(self._settings)
        yield list(self.dataflow)
        if located:
            yield self.located

    @functools.cached_property
    def dataflow(self) -> Mapping[Alteration, list[list[Site]]]:
        """How values could flow otherwise through the parts of the model, and at which sites, probe by probe."""
        return dataflow_changes(self._doubles) if self._forward else {}

    @functools.cached_property
    def located(self) -> list[Alteration]:
        """Defects, settings and changes of the dataflow at one place of the model.

        A change of the dataflow of `layers.*.feed_forward` at `layers.0` is that of `layers.0.feed_forward`: such a one is left out.
        """
        seen = {self._identity(one) for one in self.dataflow}
        found = self.at_places((*self.defects, *self.settings))
        for one in self.at_places(self.dataflow):
            if (identity := self._identity(one)) not in seen:
                seen.add(identity)
                found.append(one)
        return found

    def _identity(self, change: Alteration) -> tuple[str, tuple[frozenset[Site], ...]]:
        """What a change of the dataflow does, and where it does it in each probe."""
        return change.id, tuple(map(frozenset, self.where(change)))

    def at_places(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """Each of these at every place within the model."""
        found: list[Alteration] = []
        for one in alterations if self._forward else ():
            placed = [dataclasses.replace(one, place=place) for place in places(self.where(one))]
            self._everywhere |= dict.fromkeys(placed, one)
            found += placed
        return found

    def where(self, one: Alteration) -> list[list[Site]]:
        """The sites at which an alteration is, probe by probe."""
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
        """The deterministic alterations that round, or replace a function that some probe calls."""
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
        """False for a defect of a smaller component that the probe does not contain, although it calls what the defect replaces."""
        order, probe = list(FORWARD), self.probes[index].component
        if probe not in FORWARD or one.component not in order[: order.index("encoder_layer")]:
            return True
        return order.index(one.component) >= order.index(probe) or _FUNCTIONS[one.component] in self._sites[index]
