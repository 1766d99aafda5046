"""Searches for the cause of a component's wrong outputs, cheapest kinds of explanation first."""

import math
from dataclasses import dataclass, field

from ..expectation.components import DECODING, FORWARD
from . import words
from .altered import Combination
from .conclusions import Conclusions
from .evidence import Search
from .evidence.distinguishing import plainest
from .evidence.first_wrong import shapes
from .evidence.near_matches import Nearly, nearly, rest
from .failing_parts import FailingParts
from .findings import TimeIsUp, Verdict
from .port_symptoms import symptoms_of
from .questions import About, Questions, Task
from .symptoms import Symptom, rounding

LOST = 1e-2  # share of the largest value up to which an error may be a loss of digits


@dataclass
class CauseSearch:
    """Searches for the cause of the wrong outputs of one component and adds the findings.

    symptoms: the symptoms found so far. fewer: the search in float32, if the component fails on
    fewer cases there.
    """

    task: Task
    questions: Questions
    conclusions: Conclusions
    parts: FailingParts
    place: About
    search: Search
    symptoms: list[Symptom] = field(default_factory=list)
    fewer: tuple[About, Search] | None = None

    def run(self) -> list[Combination]:
        """Adds the finding on the outputs; returns what explains them."""
        place, search, port, conclusions = self.place, self.search, self.task.port, self.conclusions
        evidence = search.evidence
        if port.whole and (relation := shapes(evidence)):
            conclusions.add(place, Verdict.DESCRIBED, words.shapes(relation))
            return []
        if place.component not in FORWARD:
            self.symptoms = self._describe(place, search)
        if self._only_rounds():
            return []
        if found := self._quickly(place, search):
            conclusions.explained(place, evidence, found)
        elif follows := self.parts.whole_follows(place, evidence):
            conclusions.add(place, Verdict.FOLLOWS, follows)
        elif port.whole and (found := search.constants(conclusions.known)):
            conclusions.explained(place, evidence, found)  # tried before places, which take long
        elif lost := self._lost_digits():
            conclusions.add(place, Verdict.IMPRECISE, words.imprecise(lost, place.dtype), lost)
        elif (near := self._nearly()) and (found := search.constants(conclusions.known)):
            conclusions.explained(place, evidence, found)  # another number, not fewer digits of the same one
        elif near and self._in_float32():
            return []
        elif found := self._alone(search):
            conclusions.explained(place, evidence, found)
        elif conditional := [] if self._described else search.where_failing():
            verdict = Verdict.EXPLAINED if len(conditional) == 1 else Verdict.INDISTINGUISHABLE
            conclusions.add(place, verdict, words.conditional(conditional, evidence), conditional)
        elif near or not self._in_float32():
            return self._search_long(place, search, near)
        return found

    @property
    def _described(self) -> bool:
        """Whether a symptom describes the complete output."""
        return any(symptom.complete for symptom in self.symptoms)

    def _describe(self, place: About, search: Search) -> list[Symptom]:
        return symptoms_of(self.task, place, search.evidence, self.conclusions.known)

    def _quickly(self, place: About, search: Search) -> list[Combination]:
        """The simplest explanations: a single alteration, several of a whole model's component, or
        the findings in the parts.
        """
        several = self.task.port.whole and self.task.pairs
        found = search.explain(self.conclusions.known, located=False) or (search.together() if several else [])
        found = found or self._besides_missing(search, located=False)
        failures = self.parts.failures(place.dtype, search.evidence)
        if found or not failures:
            return found
        self.parts.localise(place, search.evidence, failures)
        return search.explain(self.conclusions.known, located=False) if self.conclusions.known else []

    def _besides_missing(self, search: Search, located: bool = True) -> list[Combination]:
        """Pairs of an alteration with the port's NaN, common in rows without keys, and another."""
        return next((found for base in search.missing() if (found := search.explain(base, located))), [])

    def _only_rounds(self) -> bool:
        """Whether the outputs of a whole model differ only by rounding; adds the finding."""
        place, evidence = self.place, self.search.evidence
        if not self.task.port.whole or place.dtype not in ("float64", "float32"):
            return False
        rounds = rounding(evidence.probes, evidence.answers, evidence.clean)
        for one in rounds:
            self.task.say(f"{place.name}: {one.sentence}")
        self.symptoms = rounds or self.symptoms
        if place.dtype == "float64":
            return bool(rounds) and self._in_float32(rounds=True)
        if rounds:
            self.conclusions.nameless(place, evidence, rounds)
        return bool(rounds)

    def _lost_digits(self) -> list[Combination]:
        """The low-precision matrix product that explains a whole model's small float32 errors."""
        evidence = self.search.evidence
        small = self.task.port.whole and self.place.dtype == "float32" and rest(evidence, (), evidence.failing) < LOST
        return self.search.low_products() if small else []

    def _nearly(self) -> Nearly | None:
        """The alterations that match except for the last digits, unless a symptom is complete."""
        if self.place.component not in FORWARD:
            return None
        self.symptoms = self._describe(self.place, self.search)
        evidence, known = self.search.evidence, self.conclusions.known
        return None if self._described else nearly(evidence, known) or (nearly(evidence) if known else None)

    def _alone(self, search: Search) -> list[Combination]:
        """Further single alterations: at one place, next to NaN, a constant, or other code."""
        known = self.conclusions.known
        found = search.explain(known) or self._besides_missing(search) or search.constants(known)
        return found or ([] if self._described else search.recoded(known))

    def _search_long(self, place: About, search: Search, near: Nearly | None = None) -> list[Combination]:
        """Adds the finding if no single alteration gives the outputs; returns the explanation."""
        evidence, found = search.evidence, list[Combination]()
        if near:
            self.conclusions.add(place, Verdict.IMPRECISE, words.nearly(near, evidence), near.found)
        elif found := self._together(place, search):
            self.conclusions.explained(place, evidence, found)
        elif imprecise := search.imprecise():
            self.conclusions.add(place, Verdict.IMPRECISE, words.imprecise(imprecise, place.dtype), imprecise)
        elif left := [] if self._described else search.partly(base := self._cover(search)):
            meant = set(evidence.explained(base))
            names = plainest([base, *search.alike(base)], evidence, lambda one: set(evidence.explained(one)) >= meant)
            left = left if left != [base] else names[:1]
            text = words.partly(names, left, evidence, [symptom.sentence for symptom in self.symptoms])
            paths = names if left == names[:1] else [names[0], *left]
            self.conclusions.add(place, Verdict.PARTLY, text, [one for one in paths if one])  # on one path it may be correct
        elif self.fewer:
            (narrow, other), self.fewer = self.fewer, None
            self.conclusions.forget_parts()
            self._quickly(narrow, other)
            self.symptoms = self._describe(narrow, other)
            found = self._search_long(narrow, other)
            self._say_only_in_float32(found)
        else:
            self.conclusions.open.append((self.conclusions.nameless(place, evidence, self.symptoms), evidence))
        return found

    def _together(self, place: About, search: Search) -> list[Combination]:
        """Explanations by two alterations, or by several that each explain some cases.

        Empty if a symptom describes the complete output or, in decoding, says where it is wrong.
        """
        if self._described or not self.task.pairs or (place.component in DECODING and self.symptoms):
            return []
        found: list[Combination] = []
        if not search.imprecise():
            found = (
                search.pairs(lambda share: self.task.progress(f"{place.component} {place.dtype}, pairs", share)) or search.with_nearest()
            )
        cover = () if found else self._cover(search)
        return [cover] if cover and search.evidence.explains(cover, self.conclusions.known) else found

    def _cover(self, search: Search) -> Combination:
        """The combination that explains the most outputs, from what is known, or from scratch if
        that explains less than half of the failing ones.
        """
        first = search.cover(self.conclusions.known)
        if search.most(first):
            return first
        covers = [first, *(search.cover(base) for base in ((), *search.generated()[:1]))]
        return max(covers, key=lambda cover: len(search.evidence.explained(cover)))

    def _in_float32(self, rounds: bool = False) -> bool:
        """Whether float32 shows what float64 hides: a table or a constant with few digits does not
        matter there.

        Adds the finding if float32 conforms or is explained. rounds: whether the outputs are known
        to be rounded.
        """
        if self.place.dtype != "float64" or "float32" not in self.task.port.dtypes or self._described:
            return False
        known = self.conclusions.known
        if not rounds and (self.search.imprecise() or self.search.most(known)):
            return False
        narrow = self.place._replace(dtype="float32")
        other, failed = self.questions.ask(narrow, every=True)
        self.questions.heard = None
        evidence, conclusions = self.search.evidence, self.conclusions
        if failed or not other.evidence.answers:
            return False
        if not other.evidence.failing:
            finding = conclusions.nameless(self.place, evidence, self.symptoms)
            conclusions.open.append((finding, evidence))
            text = words.digits(finding.text, rest(evidence, (), evidence.failing))
            conclusions.change(finding, verdict=Verdict.DESCRIBED, text=text)
            return True
        before, symptoms, trees = conclusions.saved(), self.symptoms, len(self.parts.divergences)
        conclusions.forget_parts()
        fewer = len(other.evidence.failing) < len(evidence.failing)
        try:
            found = self._quickly(narrow, other) or (self._alone(other) if fewer else [])
        except (TimeIsUp, KeyboardInterrupt):
            conclusions.restore(before)
            raise
        if found:
            conclusions.explained(narrow, other.evidence, found)
            self._say_only_in_float32(found)
            return True
        self.fewer = (narrow, other) if fewer else None
        conclusions.restore(before)
        self.symptoms = symptoms
        del self.parts.divergences[trees:]
        return False

    def _say_only_in_float32(self, found: list[Combination]) -> None:
        """Marks the component's last finding as one in float32, with its error in float64."""
        wide = self.search.evidence
        last = next(finding for finding in reversed(self.conclusions.findings) if not finding.paths)
        left = min((rest(wide, one, wide.failing) for one in found), default=math.inf)
        self.conclusions.change(last, text=words.only_in_float32(last.text, left))
