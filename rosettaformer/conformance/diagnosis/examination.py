"""The examination of a port: what is wrong with it, by name.

For every component that fails, the smallest first, the alterations are searched whose altered reference equals the port's answers to all of
the component's cases. What is found in a part is tried first on what contains it. Where one name does not explain a model, and its modules
can be traced, the parts that fail on the reference's inputs are searched one by one; then alterations at one place, constants, and two
names together. What nothing explains is described.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..defects import all_defects, injected
from ..defects.settings import all_settings
from ..reference.components import COMPONENTS, DECODING, FORWARD, forward_of
from . import altered, crashes, evidence, explanation, stability
from .altered import Combination, Outputs
from .common import common
from .crashes import Failed
from .deadline import Deadline, TimeIsUp
from .digits import nearly
from .divergence import Failure
from .findings import Diagnosis
from .hypotheses import Hypotheses, candidates
from .record import About, Record
from .relations import Relation, describe
from .search import Search
from .subject import Subject
from .substitution import Substitution
from .tracing import TRACEABLE, Progress, Tracing

__all__ = ["diagnose"]

TRACED = 2  # a model that no name explains is traced on so many failing cases
TWICE = 3  # the number of cases of a component that are evaluated two times at first


def diagnose(
    port: str,
    components: Sequence[str] = (),
    mode: str = "",
    pairs: bool = True,
    gradients: bool = True,
    limit: float | None = None,
    answer_limit: float = 60.0,
    declared: Collection[tuple[str, str]] = (),
    progress: Progress = lambda what, share: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Diagnosis:
    """The diagnosis of a port, without findings where everything that it covers conforms.

    components: only these. pairs: search also for two alterations together. gradients: run the gradient cases of the components whose
    outputs are right, and walk the gradients of the largest one, where its modules can be traced. limit: seconds after which the best so
    far is returned, as it is at KeyboardInterrupt; None for none. answer_limit: seconds for one answer. declared: cases and dtypes in which
    the port is known to deviate, and which are left out. progress is called with what is being done and the share of it that is done, say
    with each sentence as soon as it is known to hold.
    Raises ValueError where the port cannot be started or lacks the mode, MissingBackend where its framework is not installed.
    """
    deadline = Deadline(limit)
    with contextlib.closing(Subject(port, mode, answer_limit, declared, deadline)) as subject:
        examiner = _Examiner(subject, pairs, deadline, progress, say)
        try:
            for component in COMPONENTS:
                forward = forward_of(component)
                wanted = not components or component in components or (gradients and forward in components)
                if component in subject.covered and wanted and (not forward or (gradients and examiner.record.right(forward))):
                    examiner.examine(component)
            if gradients:
                examiner.examine_gradients(components or FORWARD)
        except TimeIsUp as error:
            examiner.stop(str(error))
        except KeyboardInterrupt:
            examiner.stop("interrupted")
        return Diagnosis(examiner.record.findings, examiner.tracing.divergences, examiner.tracing.gradients, examiner.stopped)


class _Examiner:
    """Examines component by component, and keeps a record of what is found."""

    def __init__(
        self, subject: Subject, pairs: bool, deadline: Deadline, progress: Progress, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.stopped = ""
        self._subject, self._pairs, self._deadline, self._progress = subject, pairs, deadline, progress
        self._say = functools.cache(say)  # nothing is said twice
        self.record = Record(subject, pairs, self._say)
        self.tracing = Tracing(subject, progress)
        self._defects = [defect for defect in all_defects().values() if not defect.unobservable]
        self._settings = list(all_settings().values())
        self._heard: tuple[About, str] | None = None  # the first failure of the component whose cases are being run
        self._current: tuple[About, Search] | None = None  # what is being searched
        self._relations: list[Relation] = []  # what is known to hold of it

    def examine(self, component: str) -> None:
        """Adds the findings on a component, in the first dtype in which it fails; where it cannot run in float64, in the next one, too."""
        cannot = None
        for dtype in self._subject.dtypes:
            self._deadline.check()
            place = About(component, dtype)
            search, failed = self._ask(place, bool(cannot))
            if cannot and not search.failing:
                if search.answers and not failed:
                    self.record.change(cannot, text=f"{cannot.text}\n  {dtype} conforms")
                return
            if failed or search.failing:
                self._current, self._relations = (place, search) if search.failing else None, []
                self._say(explanation.first(component, dtype, search, failed))
                self._heard = None
                search = self._in_its_dtype(place, search)
                self._examine(place, search, failed)
                if search.answers or cannot or dtype != "float64":
                    return
                cannot = self.record.findings[-1]

    def _ask(self, place: About, every: bool = False) -> tuple[Search, Failed]:
        """The port's answers to the component's cases in the dtype, and the cases that have none. every: also those that need not be asked
        in another dtype than the first."""
        self._heard = None
        self._progress(f"{place.component} {place.dtype}", 0.0)
        cases = self._subject.cases(place.component, place.dtype, every)
        replies = self._subject.ask(stability.twice(cases, TWICE), self._hear)
        failed = [(case, answer) for case, kind, answer in replies if kind not in ("outputs", "skipped")]
        answered = [(case, answer) for case, kind, answer in replies if kind == "outputs"]
        return self._new_search([case for case, _ in answered], [answer for _, answer in answered], len(failed)), failed

    def _hear(self, case: Case, kind: str, answer: Any) -> None:
        """Says the first failure among the replies to the cases of a component, before the others are there."""
        if self._heard is None and (complaint := evidence.complaint(case, kind, answer)):
            self._heard = About(case.component, case.dtype), complaint
            self._say(f"{case.component} fails in {case.dtype}: {complaint}")

    def stop(self, reason: str) -> None:
        """Ends the examination: what is known of the component that is being searched is its finding."""
        self.stopped = reason
        if self._current is not None:
            place, search = self._current
            self.record.add(place, "stopped", explanation.stopped(reason, search, self._sentences))
        elif self._heard is not None:
            place, complaint = self._heard
            self.record.add(place, "stopped", f"{reason}, before all cases were run\n  first seen: {complaint}")

    def examine_gradients(self, components: Iterable[str]) -> None:
        """Walks the gradients of the largest of the components whose outputs are right, and adds the finding where one is wrong."""
        found = self.tracing.backward(filter(self.record.right, components))
        if found and found.first:
            name, dtype = found.first.name, self._subject.dtypes[0]
            self.record.add(About(found.first.component, dtype, [name]), "gradient", found.sentence.removeprefix(f"{name}: "))

    def _examine(self, place: About, search: Search, failed: Failed) -> None:
        random = [case for case, error in failed if stability.RANDOM in error]
        crashed = [(case, error) for case, error in failed if stability.RANDOM not in error]
        found: list[Combination] = []
        first = len(self.record.findings)
        touched = stability.made_random(search.hypotheses) & set(search.failing)
        if random or self._subject.random(search.hypotheses.probes[index] for index in sorted(touched)):
            self._unstable(place, [*random, *search.hypotheses.probes])
        elif search.failing:
            found = self._search(place, search)
        self._current = None
        if crashed:
            self._crashed(place, crashed, random, search, found)
            self.record.findings.insert(first, self.record.findings.pop())  # it is said first

    def _crashed(self, place: About, crashed: Failed, random: Sequence[Case], search: Search, found: Sequence[Combination]) -> None:
        """Adds the finding that the port has no answer to some cases. found: what explains the answers to the others."""
        cases = [case for case, _ in crashed]
        alike = [] if random else crashes.alike(candidates(cases, self._defects), cases, search, *found[:1])
        self.record.add(place, "error", explanation.crashed(crashes.sentence(crashed, [*random, *search.hypotheses.probes]), alike), alike)

    def _unstable(self, place: About, cases: Sequence[Case]) -> None:
        """Adds the finding that two answers to a case differ, with the defects that make the same cases random, and by as much."""
        answers = {index: self._subject.draws(cases[index]) for index in self._subject.random(cases)}
        found = stability.random_defects(self._hypotheses(cases), answers)
        part = stability.random_part(cases[min(answers)], self._subject) if answers and place.component in TRACEABLE else ""
        self.record.add(place, "unstable", explanation.unstable(found, part, stability.dropping(cases, answers)), found)

    def _search(self, place: About, search: Search) -> list[Combination]:
        """Adds the finding on the answers; returns what explains them."""
        if place.component not in FORWARD:
            self._relations = self._describe(place, search)
        if found := self._quickly(place, search):
            self.record.explained(place, search, found)
        elif parts := self._follows(place, search):
            self.record.add(place, "follows", parts)
        elif found := self._alone(place, search):
            self.record.explained(place, search, found)
        elif conditional := [] if self._described else search.where_failing():
            self.record.add(place, *explanation.conditional(conditional, search), conditional)
        elif not self._in_float32(place, search):
            return self._search_long(place, search)
        return found

    def _search_long(self, place: About, search: Search) -> list[Combination]:
        """Adds the finding on the answers that no single alteration gives; returns what explains them."""
        found: list[Combination] = []
        near = None if self._described else nearly(search, self.record.known) or nearly(search)
        if near:
            self.record.add(place, "imprecise", explanation.nearly(near, search), near.found)
        elif found := self._together(place, search):
            self.record.explained(place, search, found)
        elif imprecise := search.imprecise():
            self.record.add(place, "imprecise", explanation.imprecise(imprecise[0], place.dtype), imprecise)
        elif rest := [] if self._described else search.partly(base := self._cover(search)):
            self.record.add(place, "partly", explanation.partly(base, rest, search, self._sentences), rest)
        else:
            self.record.open.append((self.record.nameless(place, search, self._relations), search))
        return found

    def _in_its_dtype(self, place: About, search: Search) -> Search:
        """The search among the same values in the dtype that they must have; adds the finding where the port's is a wider one."""
        answers, wide = evidence.narrowed(search.answers, search.clean)
        if wide:
            cases = f"{len(wide)} of {len(answers)} cases"
            search = Search(search.hypotheses, answers, search.failed)
            self.record.add(place, "described", explanation.wide(cases, place.dtype, min(wide.values()), bool(search.failing)))
            self._current = (place, search) if search.failing else None
        return search

    def _in_float32(self, place: About, search: Search) -> bool:
        """Whether float32 says what float64 hides: there a table or a constant of fewer digits does not show. Adds the finding where it
        conforms, or is explained; where it fails on fewer cases the long search is made in it."""
        if place.dtype != "float64" or "float32" not in self._subject.dtypes or self._described or search.imprecise():
            return False
        narrow = About(place.component, "float32")
        other, failed = self._ask(narrow)
        self._heard = None
        if failed or not other.answers:
            return False
        if not other.failing:
            finding = self.record.nameless(place, search, self._relations)
            self.record.change(finding, verdict="described", text=explanation.digits(finding.text))
            return True
        names = {probe.id for probe in other.hypotheses.probes}
        fewer = len(other.failing) < sum(search.hypotheses.probes[index].id in names for index in search.failing)
        before, relations, trees = self.record.saved(), self._relations, len(self.tracing.divergences)
        self.record.forget_parts()
        if found := self._quickly(narrow, other) or (self._alone(narrow, other) if fewer else []):
            self.record.explained(narrow, other, found)
        elif fewer:
            self._search_long(narrow, other)
        else:
            self.record.restore(before)
            self._relations = relations
            del self.tracing.divergences[trees:]
            return False
        last = next(finding for finding in reversed(self.record.findings) if not finding.paths)
        self.record.change(last, text=f"{last.text}\n{explanation.ONLY_IN_FLOAT32}")
        return True

    @property
    def _described(self) -> bool:
        """Whether a relation says all of the output that is being searched."""
        return any(relation.complete for relation in self._relations)

    @property
    def _sentences(self) -> list[str]:
        return [relation.sentence for relation in self._relations]

    def _describe(self, place: About, search: Search, aloud: bool = True) -> list[Relation]:
        """The relations of the port's answers to the reference's values, or to those of the reference with what is known in it; where none
        are sought, what the answers that fail have in common. aloud: whether they are said at once."""
        probes = search.hypotheses.probes
        if place.component in FORWARD:
            found = describe(probes, search.answers, self._subject.framework, search.clean)
            if not any(relation.complete for relation in found):
                found = self._describe_besides(search) or found
        else:
            failing = [(probes[index], search.clean[index], search.answers[index]) for index in search.failing]
            found = common(failing, [probes[index] for index in search.right()])
        for one in found if aloud or any(relation.complete for relation in found) else ():
            self._say(f"{place.name}: {one.sentence}")
        return found

    def _describe_besides(self, search: Search) -> list[Relation]:
        """What the answers are in terms of the reference with what is known in it, where that is all of the output."""
        known, probes = self.record.known, search.hypotheses.probes
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
        nameless = [finding for finding in self.record.findings if finding.verdict in ("described", "partly", "unexplained")]
        components = {finding.component for finding in nameless if not finding.paths and finding.component in FORWARD}
        paths = {path for finding, _ in self.record.open for path in finding.paths if finding in nameless}
        if place.component not in FORWARD or not (components or paths):
            return ""
        count = Substitution(self._subject, components, paths, self.record.known).explains(search)
        return explanation.follows_own(sorted(components) or sorted(paths), self.record.known, count) if count else ""

    def _alone(self, place: About, search: Search) -> list[Combination]:
        """Further explanations by one alteration: at one place, besides NaN, a constant."""
        if place.component in FORWARD:
            self._relations = self._describe(place, search)
        return search.explain(self.record.known) or self._besides_missing(search) or search.constants(self.record.known)

    def _together(self, place: About, search: Search) -> list[Combination]:
        """Explanations by two alterations, or by more that each explain something; none where a relation says all of the output, or of
        an answer that takes many steps where it is wrong."""
        if self._described or not self._pairs or (place.component in DECODING and self._relations):
            return []
        found: list[Combination] = []
        if not search.imprecise():
            found = search.pairs(lambda share: self._progress(f"{place.component} {place.dtype}, pairs", share))
            found = found or search.with_nearest()
        cover = () if found else self._cover(search)
        return [cover] if cover and search.explains(cover, self.record.known) else found

    def _cover(self, search: Search) -> Combination:
        """What explains the most answers, from nothing or from what is known."""
        return max((search.cover(base) for base in ((), self.record.known)), key=lambda cover: len(search.explained(cover)))

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
            relations = self._describe(place, part, len(roles) == 1)
            complete = any(relation.complete for relation in relations)
            if len(roles) > 1 and not complete:
                for own in roles.values():
                    self._localise_kind(component, dtype, own)
                return
            found = [] if complete else part.pairs()
            finding = self.record.explained(place, part, found) if found else self.record.nameless(place, part, relations)
        self.record.open.append((finding, part))

    def _new_search(self, cases: Sequence[Case], answers: Sequence[Outputs], failed: int = 0) -> Search:
        return Search(self._hypotheses(cases), answers, failed)

    def _hypotheses(self, cases: Sequence[Case]) -> Hypotheses:
        return Hypotheses(cases, *(candidates(cases, kind) for kind in (self._defects, self._settings)), self._deadline)
