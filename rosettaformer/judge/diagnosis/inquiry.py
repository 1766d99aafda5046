"""The search for what gives a component's answers, the simplest first, and in float32 what float64 hides."""

import math
from collections.abc import Callable
from typing import Any

from ..case import Case
from ..expectation.components import DECODING, FORWARD
from ..expectation.near_ties import followed
from ..status import LEFT, Kind
from . import altered, evidence, explanation, stability
from .altered import Combination
from .beginning import Failed, shapes
from .digits import Nearly, nearly, rest
from .examined_port import Checked, Progress, Subject
from .findings import Deadline, TimeIsUp, Verdict
from .parts import Parts
from .record import About
from .search import Search
from .symptoms import rounding

LOST = 1e-2  # of the largest value: more is no loss of digits
TWICE = 3  # the number of cases of a component that are evaluated two times at first


class Inquiry(Parts):
    """Asks a port for its answers to a component's cases, and searches them."""

    def __init__(
        self, subject: Subject, pairs: bool, deadline: Deadline, progress: Progress, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        super().__init__(subject, pairs, deadline, progress, say)
        self.checked = Checked(subject.port)
        self._heard: tuple[About, str] | None = None  # the first failure of the component whose cases are being run
        self._current: tuple[About, Search] | None = None  # what is being searched
        self._fewer: tuple[About, Search] | None = None  # the same in float32, where it fails on fewer cases

    def _ask(self, place: About, every: bool = False) -> tuple[Search, Failed]:
        """The port's answers to the component's cases in the dtype, and the cases that have none. every: also those that need not be asked
        in another dtype than the first."""
        self._heard = None
        self._progress(f"{place.component} {place.dtype}", 0.0)
        cases = self._subject.cases(place.component, place.dtype, every)
        replies = self._subject.ask(stability.twice(cases, TWICE), self._hear)
        failed = [(case, answer) for case, kind, answer in replies if kind not in (Kind.OUTPUTS, *LEFT)]
        answered = [(case, answer) for case, kind, answer in replies if kind == Kind.OUTPUTS]
        search = self._new_search([case for case, _ in answered], [answer for _, answer in answered], len(failed))
        expected = iter(search.clean)
        for case, kind, answer in replies:
            self.checked.add(case, kind, answer, next(expected) if kind == Kind.OUTPUTS else {})
        return search, failed

    def _fails_beyond(self, place: About) -> bool:
        """Whether the port fails a case of the component in the dtype that `_ask` does not ask it there."""
        asked = {case.id for case in self._subject.cases(place.component, place.dtype)}
        rest = [case for case in self._subject.cases(place.component, place.dtype, every=True) if case.id not in asked]
        self._progress(f"{place.component} {place.dtype}", 0.0)
        fails = False
        for case, kind, answer in self._subject.ask(rest):
            expected = followed(case, self._store.expect(case), answer) if kind == Kind.OUTPUTS else {}
            self.checked.add(case, kind, answer, expected)
            fails = fails or kind not in (Kind.OUTPUTS, *LEFT) or (kind == Kind.OUTPUTS and not altered.equal(expected, answer))
        return fails

    def _hear(self, case: Case, kind: str, answer: Any) -> None:
        """Says the first failure among the replies to the cases of a component, before the others are there."""
        if self._heard is None and (complaint := evidence.complaint(case, kind, answer, self._store)):
            self._heard = About(case.component, case.dtype), complaint
            self._say(f"{case.component} fails in {case.dtype}: {complaint}")

    def _search(self, place: About, search: Search) -> list[Combination]:
        """Adds the finding on the answers; returns what explains them."""
        self._fewer = None
        if self._subject.whole and (sentence := shapes(search)):
            self.record.add(place, Verdict.DESCRIBED, sentence)
            return []
        if place.component not in FORWARD:
            self._symptoms = self._describe(place, search)
        if self._rounds(place, search):
            return []
        if found := self._quickly(place, search):
            self.record.explained(place, search, found)
        elif parts := self._follows(place, search):
            self.record.add(place, Verdict.FOLLOWS, parts)
        elif self._subject.whole and (found := search.constants(self.record.known)):
            self.record.explained(place, search, found)  # places take long to try
        elif lost := self._lost(place, search):
            self.record.add(place, Verdict.IMPRECISE, explanation.imprecise(lost, place.dtype), lost)
        elif (near := self._nearly(place, search)) and (found := search.constants(self.record.known)):
            self.record.explained(place, search, found)  # a number that is nearly another, not its digits
        elif near and self._in_float32(place, search):
            return []
        elif found := self._alone(search):
            self.record.explained(place, search, found)
        elif conditional := [] if self._described else search.where_failing():
            self.record.add(place, *explanation.conditional(conditional, search), conditional)
        elif near or not self._in_float32(place, search):
            return self._search_long(place, search, near)
        return found

    def _rounds(self, place: About, search: Search) -> bool:
        """Whether the answers of a whole model, of which everything else takes long to try, differ by rounding alone. Adds the finding."""
        if not self._subject.whole or place.dtype not in ("float64", "float32"):
            return False
        self._symptoms = rounding(search.hypotheses.probes, search.answers, search.clean)
        for one in self._symptoms:
            self._say(f"{place.name}: {one.sentence}")
        if place.dtype == "float64":
            return bool(self._symptoms) and self._in_float32(place, search, rounds=True)
        if not self._symptoms:
            return False
        self.record.nameless(place, search, self._symptoms)
        return True

    def _lost(self, place: About, search: Search) -> list[Combination]:
        """What multiplies with fewer digits in a whole model whose errors in float32 are as small."""
        small = self._subject.whole and place.dtype == "float32" and rest(search, (), search.failing) < LOST
        return search.low_products() if small else []

    def _nearly(self, place: About, search: Search) -> Nearly | None:
        """What gives the answers but for their last digits, where no symptom says all of them."""
        if place.component in FORWARD:
            self._symptoms = self._describe(place, search)
        if self._described or place.component not in FORWARD:
            return None
        return nearly(search, self.record.known) or (nearly(search) if self.record.known else None)

    def _search_long(self, place: About, search: Search, near: Nearly | None = None) -> list[Combination]:
        """Adds the finding on the answers that no single alteration gives; returns what explains them."""
        found: list[Combination] = []
        if near:
            self.record.add(place, Verdict.IMPRECISE, explanation.nearly(near, search), near.found)
        elif found := self._together(place, search):
            self.record.explained(place, search, found)
        elif imprecise := search.imprecise():
            self.record.add(place, Verdict.IMPRECISE, explanation.imprecise(imprecise, place.dtype), imprecise)
        elif rest := [] if self._described else search.partly(base := self._cover(search)):
            meant = set(search.explained(base))
            names = search.plainest([base, *search.alike(base)], lambda one: set(search.explained(one)) >= meant)
            rest = rest if rest != [base] else names[:1]
            base = names[0]
            text = explanation.partly(names, rest, search, self._sentences)
            self.record.add(place, Verdict.PARTLY, text, names if rest == [base] else rest)
        elif self._fewer:
            wide = search
            (place, search), self._fewer = self._fewer, None
            self.record.forget_parts()
            self._quickly(place, search)
            self._symptoms = self._describe(place, search)
            found = self._search_long(place, search)
            self._say_only_in_float32(wide, found)
        else:
            self.record.open.append((self.record.nameless(place, search, self._symptoms), search))
        return found

    def _say_only_in_float32(self, wide: Search, found: list[Combination]) -> None:
        """Says of the last finding on a component that it is in float32, and what it leaves of the answers in float64."""
        last = next(finding for finding in reversed(self.record.findings) if not finding.paths)
        left = min((rest(wide, one, wide.failing) for one in found), default=math.inf)
        self.record.change(last, text=explanation.only_in_float32(last.text, left))

    def _in_its_dtype(self, place: About, search: Search) -> Search:
        """The search among the same values in the dtype that they must have; adds the finding where the port's is a wider one."""
        answers, wide = evidence.narrowed(search.answers, search.clean)
        if wide:
            cases = f"{len(wide)} of {len(answers)} cases"
            search = Search(search.hypotheses, answers, search.failed)
            self.record.add(place, Verdict.DESCRIBED, explanation.wide(cases, place.dtype, min(wide.values()), bool(search.failing)))
            self._current = (place, search) if search.failing else None
        return search

    def _in_float32(self, place: About, search: Search, rounds: bool = False) -> bool:
        """Whether float32 says what float64 hides: there a table or a constant of fewer digits does not show. Adds the finding where it
        conforms, or is explained. rounds: whether the answers are known to be rounded."""
        if place.dtype != "float64" or "float32" not in self._subject.dtypes or self._described:
            return False
        if not rounds and search.imprecise():
            return False
        narrow = About(place.component, "float32")
        other, failed = self._ask(narrow, every=True)
        self._heard = None
        if failed or not other.answers:
            return False
        if not other.failing:
            finding = self.record.nameless(place, search, self._symptoms)
            self.record.open.append((finding, search))
            self.record.change(finding, verdict=Verdict.DESCRIBED, text=explanation.digits(finding.text, rest(search, (), search.failing)))
            return True
        before, symptoms, trees = self.record.saved(), self._symptoms, len(self.tracing.divergences)
        self.record.forget_parts()
        fewer = len(other.failing) < len(search.failing)
        try:
            found = self._quickly(narrow, other) or (self._alone(other) if fewer else [])
        except (TimeIsUp, KeyboardInterrupt):
            self.record.restore(before)
            raise
        if found:
            self.record.explained(narrow, other, found)
            self._say_only_in_float32(search, found)
            return True
        self._fewer = (narrow, other) if fewer else None
        self.record.restore(before)
        self._symptoms = symptoms
        del self.tracing.divergences[trees:]
        return False

    def _alone(self, search: Search) -> list[Combination]:
        """Further explanations by one alteration: at one place, besides NaN, a constant."""
        return search.explain(self.record.known) or self._besides_missing(search) or search.constants(self.record.known)

    def _together(self, place: About, search: Search) -> list[Combination]:
        """Explanations by two alterations, or by more that each explain something; none where a symptom says all of the output, or of
        an answer that takes many steps where it is wrong."""
        if self._described or not self._pairs or (place.component in DECODING and self._symptoms):
            return []
        found: list[Combination] = []
        if not search.imprecise():
            found = search.pairs(lambda share: self._progress(f"{place.component} {place.dtype}, pairs", share))
            found = found or search.with_nearest()
        cover = () if found else self._cover(search)
        return [cover] if cover and search.explains(cover, self.record.known) else found

    def _cover(self, search: Search) -> Combination:
        """What explains the most answers, from what is known or, if that is more, from nothing."""
        covers = (search.cover(base) for base in (self.record.known, ()))
        return max(covers, key=lambda cover: len(search.explained(cover)))
