"""The list of all hypotheses, most likely first, and the altered references' outputs.

Hypotheses are known bugs and settings of the catalogue, other inputs, dataflow changes, each of
these at one place, code changes, and ignored inputs. Constants are not listed: their values are fitted to
outputs.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import Site, places, sites
from ...expectation.components import DECODING, FORWARD, TRAINING, forward_of
from ...expectation.expectation_store import Store
from .. import altered
from ..altered import Combination
from ..findings import Deadline
from .code import code_changes
from .dataflow import dataflow_changes
from .inputs import ignored, read_otherwise
from .steps import in_steps
from .tensors import tensor_changes


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

    probes: cases in the dtype in which the port answered them. Random known bugs match no output
    and are only in `random`. settings: with their variants. deadline: raises `TimeIsUp` once it has
    passed. store: keeps the probes' expectations.
    """

    def __init__(
        self, probes: Iterable[Case], defects: Iterable[Alteration], settings: Iterable[Alteration] = (), deadline: Deadline | None = None,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.probes, self.deadline = list(probes), deadline or Deadline()
        self._doubles = [probe.at("float64") for probe in self.probes]
        self.clean = list(map((store or Store()).expect, self.probes))
        self._everywhere: dict[Alteration, Alteration] = {}  # an alteration at one place -> the same alteration everywhere
        self._changed: dict[Alteration, list[list[Site]]] = {}  # a dataflow change -> its sites, probe by probe
        self._answers = [self._kept(index) for index in range(len(self.probes))]
        self.alters, self.located = functools.cache(self._altering), functools.cache(self._located)
        self.of_kinds = functools.cache(self._of_kinds)
        self._called_in, self.inputs = functools.cache(self._calls_of), functools.cache(self._reread)
        self.dataflow, self.code = functools.cache(self._rewired), functools.cache(self._recoded)
        self._defects, self.settings = ([each for one in kind for each in one.hypotheses] for kind in (defects, settings))
        self._functions = {function for one in (*self._defects, *self.settings) for function in one.replaces} | set(_FUNCTIONS.values())

    def called(self, id_: str) -> list[Alteration]:
        """The known bug of that id, whether or not it alters a probe."""
        return [defect for defect in self._defects if defect.id == id_ and not defect.variant]

    @functools.cached_property
    def ignored(self) -> dict[str, Alteration]:
        """The alterations that ignore an input of the probes, by input."""
        return ignored(self.probes)

    @functools.cached_property
    def catalogued(self) -> list[Alteration]:
        """The known bugs, then the settings, that replace a function called by a probe."""
        return [*self._called(self._defects), *self._called(self.settings)]

    @functools.cached_property
    def in_steps(self) -> list[Alteration]:
        """The known bugs and settings of cached steps alone."""
        return list(in_steps(self.catalogued))

    @functools.cached_property
    def random(self) -> list[Alteration]:
        """The known bugs that make a probe random."""
        return [defect for defect in self._defects if defect.random and self._alters(defect)]

    def altering(self, indices: Sequence[int]) -> list[Alteration]:
        """The deterministic known bugs, their variants and the settings that alter one of these
        probes.
        """
        every = (one for one in (*self._defects, *self.settings) if not one.random)
        return [one for one in every if any(self.alters(one, index) for index in indices)]

    def tiers(self, shown: tuple[int, ...] = (), located: bool = True) -> Iterator[Sequence[Alteration]]:
        """All hypotheses, most likely first: known bugs, settings, both in layers of one kind, other
        inputs, dataflow changes, a whole model's rewrites, and each of the others at one place.
        Other code changes are in `code`.

        The first two tiers include everything that replaces a function called by a probe, whether
        or not it has an effect: one probe shows that an alteration without effect explains nothing,
        while only all probes show that it has no effect. shown: the probes one of which the
        alterations of the other tiers must alter.
        """
        yield self._called(self._defects)
        yield self._called(self.settings)
        yield self.of_kinds(shown)
        if all(probe.component in DECODING for probe in self.probes):
            yield self.in_steps
        yield self.inputs(shown)
        yield self.dataflow(shown)
        if shown and self.probes[shown[-1]].folder:
            yield self.code(shown)[0]
        if located:
            yield self.located(shown)

    def _reread(self, shown: tuple[int, ...]) -> list[Alteration]:
        """The other parameters of a whole model, and the other inputs of losses, updates, searches
        and gradients. Other components have symptoms instead.
        """
        wholes = [self._doubles[index] for index in shown[:1] if self._forward and self.probes[index].folder]
        parts = [self._doubles[index] for index in shown if not self._forward and not self.probes[index].folder]
        found = [*(one for case in wholes for one in tensor_changes(case)), *(one for case in parts for one in read_otherwise(case))]
        return list({one.id: one for one in found}.values())

    def _rewired(self, shown: tuple[int, ...]) -> list[Alteration]:
        """The dataflow changes of these probes."""
        changes = dataflow_changes([self._doubles[index] for index in shown]) if self._forward else {}
        for one, runs in changes.items():
            self._changed[one] = [[] for _ in self.probes]
            for index, run in zip(shown, runs, strict=True):
                self._changed[one][index] = run
        return list(changes)

    def _recoded(self, shown: tuple[int, ...]) -> list[list[Alteration]]:
        """The rewrites of the code that the last of these probes runs, then its other changes, by
        function. Those of steps come first in the later steps alone.
        """
        found = code_changes(self._doubles[shown[-1]])
        stepped = self.probes[shown[-1]].component == "decode_in_steps"
        return [[*in_steps(own), *own] for own in found] if stepped else found

    def _located(self, shown: tuple[int, ...]) -> list[Alteration]:
        """Known bugs, settings and dataflow changes at one place of the model, without those that
        alter none of these probes even everywhere.

        Leaves out duplicates: a change in `layers.*.feed_forward` at `layers.0` is one in
        `layers.0.feed_forward`.
        """
        changes = self.dataflow(shown)
        seen = {self._identity(one) for one in changes}
        found = self.at_places(self.altering(shown), shown)
        for one in self.at_places(changes, shown):
            if (identity := self._identity(one)) not in seen:
                seen.add(identity)
                found.append(one)
        return found

    def _identity(self, change: Alteration) -> tuple[str, tuple[frozenset[Site], ...]]:
        """The id of a dataflow change and its sites in each probe."""
        return change.id, tuple(frozenset(self.where(change, index)) for index in range(len(self.probes)))

    def _of_kinds(self, shown: tuple[int, ...]) -> list[Alteration]:
        """The known bugs and settings that alter one of these probes, in the layers of one kind."""
        return [one for one in self.at_places(self.altering(shown), shown) if one.place and one.place.of_kind]

    def at_places(self, alterations: Iterable[Alteration], shown: Sequence[int]) -> list[Alteration]:
        """Each of these alterations at every place where it occurs in these probes."""
        found: list[Alteration] = []
        for one in alterations if self._forward else ():
            placed = [dataclasses.replace(one, place=place) for place in places(self.where(one, index) for index in shown)]
            self._everywhere |= dict.fromkeys(placed, one)
            found += placed
        return found

    def where(self, one: Alteration, index: int) -> list[Site]:
        """The sites of an alteration in a probe."""
        every = self._everywhere.get(one, one)
        run = self._changed[every][index] if every in self._changed else self.sites_of(every, index)
        return [site for site in run if one.place is None or one.place.holds(site)]

    def sites_of(self, one: Alteration, index: int) -> list[Site]:
        """The sites in a probe of the functions that an alteration replaces."""
        if further := set(one.replaces) - self._functions:
            self._functions |= further
            self._called_in.cache_clear()
        return [site for function in one.replaces for site in self._called_in(index).get(function, ())]

    def _calls_of(self, index: int) -> dict[str, list[Site]]:
        """The calls of the replaced functions in a probe's run, by function."""
        return sites(self._doubles[index], self._functions)

    @property
    def _forward(self) -> bool:
        return all(probe.component in FORWARD for probe in self.probes)

    def answer(self, combination: Combination, index: int) -> dict[str, np.ndarray] | None:
        """The altered reference's float64 outputs of a probe; None if it raises."""
        self.deadline.check()
        return self._answers[index](combination)

    def _kept(self, index: int) -> Callable[[Combination], dict[str, np.ndarray] | None]:
        """Computes outputs of a probe, and keeps as many as fit into its share of the memory."""
        size = len(self.probes) * sum(one.reference.nbytes for one in self.clean[index].values())
        return functools.lru_cache(max(FEWEST, KEPT // max(1, size)))(lambda combination: altered.answer(combination, self._doubles[index]))

    def _called(self, alterations: Iterable[Alteration]) -> list[Alteration]:
        """The deterministic alterations that change rounding or a function that a probe calls."""
        return [one for one in alterations if not one.random and any(self._calls(one, index) for index in range(len(self.probes)))]

    def _calls(self, one: Alteration, index: int) -> bool:
        if one.reads or altered.rounds((one,), self.probes[index]):
            return True
        return self._meant(one, index) and any(function in self._called_in(index) for function in one.replaces)

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
        return order.index(one.component) >= order.index(probe) or _FUNCTIONS[one.component] in self._called_in(index)
