"""A component's answers and its parts: what they are in terms of the reference, and which parts of a traced model fail by themselves."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration, all_defects, injected
from ..catalogue.settings import all_settings
from ..expectation import tolerance, trace
from ..expectation.components import FORWARD
from ..expectation.expectation_store import Store
from ..ports.adapters.recorder import Force
from ..ports.adapters.submodules import transposed
from ..status import Kind
from . import altered, explanation
from .altered import FAILURES, Combination, Outputs, reversed_rows, words_of
from .common import common
from .divergence import Failure
from .examined_port import Progress, Subject, Tracing
from .findings import Deadline, Verdict
from .hypotheses import Hypotheses, candidates
from .record import About, Record
from .search import Search
from .symptoms import Symptom, describe

TRIED = 3  # cases that fail
POSITIONS = ("rotary_embedding", "positional_encoding", "position_embedding")


class Substitution:
    """The reference in which the port computes some components itself.

    components: those that the port covers and that fail by themselves. paths: the places of parts that fail only within a model.
    known: further alterations of the reference.
    """

    def __init__(self, subject: Subject, components: Collection[str], paths: Collection[str], known: Combination = ()) -> None:
        self._subject, self._components, self._paths, self._known = subject, components, paths, known

    def explains(self, search: Search) -> int:
        """The number of failing cases on which the port's output equals this reference's; 0 if one of them differs."""
        tried = [(search.hypotheses.probes[index], search.answers[index]) for index in search.cheapest()[:TRIED]]
        return len(tried) if tried and all(self._equals(*each) for each in tried) else 0

    def _equals(self, probe: Case, answer: altered.Outputs) -> bool:
        try:
            return altered.equal(tolerance.expect(probe, self._answer), answer)
        except FAILURES:
            return False

    def _answer(self, case: Case) -> dict[str, Any]:
        with injected(*(one.on(case) for one in self._known)):
            return {"output": trace.record(case, self._own)[""].output}

    def _own(self, call: trace.TracedCall) -> np.ndarray | None:
        """What the port gives for the call; None where it is not meant."""
        if call.path and call.component in self._components:
            replies = self._subject.ask([call.case(str(call.output.dtype))])
            output = replies[0][2]["output"] if replies and replies[0][1] == Kind.OUTPUTS else None
        elif call.path in self._paths:
            force = Force(call.path, trace.arrays(call.case(str(call.output.dtype)).inputs))
            kind, answer = self._subject.worker.call("trace", call.origin, [force], limit=self._subject.limit)
            output = answer[0].get(call.path, {}).get("output") if kind == Kind.OUTPUTS else None
        else:
            return None
        if not isinstance(output, np.ndarray) or (output := transposed(output, call.output.shape)).shape != call.output.shape:
            raise ValueError(f"the port's {call.name} must have an output of shape {call.output.shape}")
        return output.astype(call.output.dtype)


TRACED = 2  # failing cases on which a model is traced if nothing explains it


class Parts:
    """Examines a component by what it is made of, and keeps a record of what is found. Takes the arguments of `diagnose`."""

    def __init__(
        self, subject: Subject, pairs: bool, deadline: Deadline, progress: Progress, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.record = Record(subject, pairs, say)
        self.tracing = Tracing(subject, progress)
        self._subject, self._pairs, self._deadline, self._progress, self._say = subject, pairs, deadline, progress, say
        self._defects = [defect for defect in all_defects().values() if not defect.unobservable]
        self._settings = list(all_settings().values())
        self._store = Store()
        self._only_rounds = False  # whether what is searched conforms in a wider dtype, so that only rounding can be wrong
        self._symptoms: list[Symptom] = []  # what is known to hold of what is being searched

    @property
    def _described(self) -> bool:
        """Whether a symptom says all of the output that is being searched."""
        return any(symptom.complete for symptom in self._symptoms)

    @property
    def _sentences(self) -> list[str]:
        return [symptom.sentence for symptom in self._symptoms]

    def _describe(self, place: About, search: Search, aloud: bool = True) -> list[Symptom]:
        """The symptoms of the port's answers to the reference's values, or to those of the reference with what is known in it; where none
        are sought, what the answers that fail have in common. aloud: whether they are said at once."""
        probes = search.hypotheses.probes
        if place.component in FORWARD:
            found = describe(probes, search.answers, self._subject.framework, search.clean)
            if not any(symptom.complete for symptom in found):
                found = self._describe_besides(search) or found
        else:
            failing = [(probes[index], search.clean[index], search.answers[index]) for index in search.failing]
            found = common(failing, [probes[index] for index in search.right()])
        if not place.paths:
            found = self._asked_again(search, found)
        for one in found if aloud or any(symptom.complete for symptom in found) else ():
            self._say(f"{place.name}: {one.sentence}")
        return found

    def _asked_again(self, search: Search, symptoms: list[Symptom]) -> list[Symptom]:
        """The symptoms, those that say that an input is ignored only if that is so with the rows of the batch in reverse order, too."""
        for one in search.hypotheses.ignored:
            said = [symptom for symptom in symptoms if words_of(one) in symptom.sentence]
            if said and not self._ignores(one, search):
                words = words_of(one).partition(":")[0] + " on these cases, but not with their rows in reverse order"
                symptoms = [
                    replace(symptom, sentence=symptom.sentence.replace(words_of(one), words)) if symptom in said else symptom
                    for symptom in symptoms
                ]
        return symptoms

    def _ignores(self, one: Alteration, search: Search) -> bool:
        """Whether the port ignores an input also where the rows of the cases that fail are in reverse order."""
        probes = [search.hypotheses.probes[index] for index in search.cheapest()[:TRIED]]
        again = [other for probe in probes if (other := reversed_rows(probe)) is not probe]
        return all(
            kind == Kind.OUTPUTS and altered.equal(altered.expected((one,), case, answer), answer)
            for case, kind, answer in self._subject.ask(again)
        )

    def _describe_besides(self, search: Search) -> list[Symptom]:
        """What the answers are in terms of the reference with what is known in it, where that is all of the output."""
        known, probes = self.record.known, search.hypotheses.probes
        if any(one.on(probe) is not one for one in known for probe in probes):
            return []  # the reference that is described has one alteration for all cases
        clean = [altered.expected(known, probe) for probe in probes] if known else []
        if not clean or any(one is None for one in clean):
            return []
        with injected(*known), np.errstate(all="ignore"):
            found = describe(probes, search.answers, self._subject.framework, [one or {} for one in clean])
        names = " and ".join(one.id for one in known)
        return [replace(one, sentence=f"besides {names}, {one.sentence}") for one in found if one.complete]

    def _quickly(self, place: About, search: Search) -> list[Combination]:
        """The simplest explanations: one name, what the parts of the model come to."""
        found = search.explain(self.record.known, located=False) or self._besides_missing(search, located=False)
        failures = self.tracing.failures(place.dtype, search, 1)
        if found or not failures:
            return found
        self._localise(place.dtype, failures + self.tracing.failures(place.dtype, search, TRACED))
        return search.explain(self.record.known, located=False) if self.record.known else []

    def _besides_missing(self, search: Search, located: bool = True) -> list[Combination]:
        """One more alteration, besides one that gives NaN where the port does: many a port does so in rows without keys."""
        return next((found for base in search.missing() if (found := search.explain(base, located))), [])

    def _follows(self, place: About, search: Search) -> str:
        """What is said where the component fails because of parts of it that nothing explains; empty where it does not."""
        nameless = [
            finding for finding in self.record.findings if finding.verdict in (Verdict.DESCRIBED, Verdict.PARTLY, Verdict.UNEXPLAINED)
        ]
        components = {finding.component for finding in nameless if not finding.paths and finding.component in FORWARD}
        paths = {path for finding, _ in self.record.open for path in finding.paths if finding in nameless}
        if place.component not in FORWARD or not (components or paths):
            return ""
        count = Substitution(self._subject, components, paths, self.record.known).explains(search)
        return explanation.follows_own(sorted(components) or sorted(paths), self.record.known, count) if count else ""

    def _localise(self, dtype: str, failures: Iterable[Failure]) -> None:
        """Adds the findings on the parts of a model that fail on the reference's inputs."""
        parts: dict[str, list[Failure]] = {}
        for failure in failures:
            parts.setdefault(failure.case.component, []).append(failure)
        for component, own in parts.items():
            self._localise_kind(component, dtype, own)

    def _localise_kind(self, component: str, dtype: str, failures: Sequence[Failure]) -> None:
        """Adds the finding on parts of one kind; where nothing is the same of all, one for each place that they have in a layer."""
        part = self._new_search([failure.case for failure in failures], [{"output": failure.output} for failure in failures])
        place = About(component, dtype, sorted({failure.path for failure in failures}))
        roles: dict[str, list[Failure]] = {}
        for failure in failures:
            roles.setdefault(re.sub(r"\d+", "*", failure.path), []).append(failure)
        if found := part.explain(self.record.known) or part.constants(self.record.known):
            finding = self.record.explained(place, part, found)
        else:
            symptoms = self._describe(place, part, len(roles) == 1)
            complete = any(symptom.complete for symptom in symptoms)
            if len(roles) > 1 and not complete:
                for own in roles.values():
                    self._localise_kind(component, dtype, own)
                return
            found = [] if complete else part.pairs()
            finding = self.record.explained(place, part, found) if found else self.record.nameless(place, part, symptoms)
        self.record.open.append((finding, part))

    def _possible(self, one: Alteration) -> bool:
        return one.rounding or not self._only_rounds

    def _new_search(self, cases: Sequence[Case], answers: Sequence[Outputs], failed: int = 0) -> Search:
        return Search(self._hypotheses(cases), answers, failed)

    def _hypotheses(self, cases: Sequence[Case]) -> Hypotheses:
        defects, settings = (candidates(cases, filter(self._possible, kind)) for kind in (self._defects, self._settings))
        if self._only_rounds:  # each takes long to try: first those of positions, which show in long texts
            defects.sort(key=lambda one: one.component not in POSITIONS)
        return Hypotheses(cases, defects, settings, self._deadline, self._store)
