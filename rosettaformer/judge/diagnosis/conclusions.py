"""The conclusions about a port: the findings so far, and what they imply for larger components."""

from collections.abc import Sequence
from dataclasses import replace

from ..catalogue import Alteration
from ..catalogue.alteration import Place
from . import words
from .altered import Combination
from .evidence import Evidence
from .evidence.distinguishing import plainest, told_apart
from .evidence.evidence import SIMILAR, size_of
from .evidence.invariances import broken_invariances, remembered
from .findings import Finding, Verdict
from .questions import About, Task
from .symptoms import Symptom, only_at

SAYING = 50  # specificity from which a symptom states what the output is rather than a property of it


State = tuple[list[Finding], Combination, list[tuple[Finding, Evidence]], dict[Alteration, list[Alteration]]]


class Conclusions:
    """The findings on a port, smallest components first.

    known: the alterations that explain what was examined so far. open: findings on parts, with
    their evidence, until an explanation of the whole settles them. beginning: where the error of a
    whole model begins; every finding on it includes this.
    """

    def __init__(self, task: Task) -> None:
        self.findings: list[Finding] = []
        self.known: Combination = ()
        self.open: list[tuple[Finding, Evidence]] = []
        self.beginning = ""
        self._task, self._port = task, task.port
        self._doubtful: dict[Alteration, list[Alteration]] = {}  # known alterations and their alternatives

    def right(self, component: str) -> bool:
        """Whether the component has no finding."""
        return all(finding.component != component for finding in self.findings)

    def saved(self) -> State:
        """The current state, for `restore`."""
        return list(self.findings), self.known, list(self.open), dict(self._doubtful)

    def restore(self, state: State) -> None:
        """Returns to a saved state."""
        self.findings, self.known, self.open, self._doubtful = state

    def forget_parts(self) -> None:
        """Drops the findings on the examined component's parts and those only in float64."""
        parts = [finding for finding, _ in self.open]
        self.findings = [finding for finding in self.findings if finding not in parts]
        self.known = tuple(one for one in self.known if not one.rounding or "float32" in one.dtypes)
        self.open = []

    def add(self, place: About, verdict: Verdict, text: str, found: Sequence[Combination] = ()) -> Finding:
        """Adds a finding, with its fixes if exactly one combination explains it."""
        ids = tuple(tuple(one.id for one in combination) for combination in found)
        fixes = words.fixes(found[0], self._port.framework) if len(found) == 1 and verdict != Verdict.FOLLOWS else []
        where = "" if place.paths else self.beginning
        self._task.say(words.finding(place.name, text, where))
        self.findings.append(
            Finding(place.component, place.dtype, verdict, ids, words.finding(place.name, text, where, fixes), tuple(place.paths))
        )
        return self.findings[-1]

    def change(self, finding: Finding, text: str, verdict: Verdict | None = None) -> None:
        """Replaces the text of a finding, and its verdict unless it is None."""
        changed = replace(finding, text=text, verdict=verdict or finding.verdict)
        self.findings[self.findings.index(finding)] = changed
        self.open = [(changed if one is finding else one, evidence) for one, evidence in self.open]

    def explained(self, place: About, evidence: Evidence, found: list[Combination]) -> Finding:
        """Adds the finding that each of these combinations explains the outputs, except those that
        further cases rule out.

        The first combination counts as known from then on.
        """
        follows = found[0] == self.known
        found, told = self._alternatives(found, evidence), list[str]()
        plain = plainest(found, evidence, lambda one: evidence.explains(one, one))
        found, plainer = (plain, plain[0]) if plain != found else (found, None)
        if not place.paths:
            found, told = told_apart(found, evidence, self._port.ask)
        alike = [one for one in found if one != plainer] if plainer in found else []
        found = [one for one in found if one not in alike]
        self._learn([tuple(_within_a_model(one) if place.paths else one for one in combination) for combination in found])
        if follows:
            finding = self.add(place, Verdict.FOLLOWS, words.follows(found), found)
            self._settle(found)
            return finding
        largest = SIMILAR * size_of(evidence.probes[evidence.cheapest()[0]])
        others = [case.at(place.dtype) for case in self._port.all_cases if place.dtype in case.dtypes and size_of(case) <= largest]
        only = only_at(evidence.probes, evidence.answers, evidence.clean) if len(found) > 1 else ""
        notes = (words.differs_only_at(only), words.inconclusive(evidence, found[0]), *told, words.also(alike))
        text = words.explained(found, words.where(evidence, found[0]), others, *notes)
        finding = self.add(place, Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, text, found)
        if not place.paths:
            self._settle(found)
        return finding

    def _alternatives(self, found: list[Combination], evidence: Evidence) -> list[Combination]:
        """The combinations, and those with alternatives for known alterations."""
        result = list(found)
        for combination in found:
            for index, one in enumerate(combination):
                others = [(*combination[:index], other, *combination[index + 1 :]) for other in self._doubtful.get(one, ())]
                result += [other for other in others if other not in result and evidence.explains(other, other)]
        return result

    def _learn(self, found: list[Combination]) -> None:
        """Adds the first combination to what is known, with the others as its alternatives."""
        first = found[0]
        kept = [one for one in self.known if not set(first) & set(self._doubtful.get(one, ()))]  # drops those that the first replaces
        self.known = (*kept, *(one for one in first if one not in kept))
        for index, one in enumerate(first):
            others = [combination[index] for combination in found if len(combination) == len(first)]
            self._doubtful[one] = [other for other in dict.fromkeys(others) if other is not one]

    def nameless(self, place: About, evidence: Evidence, symptoms: Sequence[Symptom]) -> Finding:
        """Adds a finding on unexplained outputs: their symptoms, or the nearest alterations."""
        said = [symptom.sentence for symptom in symptoms]
        if any(symptom.specificity >= SAYING for symptom in symptoms):
            return self.add(place, Verdict.DESCRIBED, words.described(evidence, said))
        if not place.paths and (memory := remembered(evidence, self._port.first)):
            return self.add(place, Verdict.DESCRIBED, words.described(evidence, [memory, *said]))
        broken = [] if place.paths or self._port.whole else broken_invariances(evidence, self._port.ask)
        return self.add(
            place, Verdict.UNEXPLAINED, words.unexplained(evidence, self._task.pairs and not evidence.one_number, [*said, *broken])
        )

    def _settle(self, whole: Sequence[Combination]) -> None:
        """Reconciles the findings on parts with what explains the whole.

        Either the same alterations explain the part, or the port splits the work differently there
        and the part's finding is dropped.
        """
        parts, self.open = self.open, []
        for finding, evidence in parts:
            own = {(one.id, one.title) for one in evidence.hypotheses.altering(range(len(evidence.probes)))}
            shown = tuple(replace(one, place=None) if one.place else one for one in whole[0] if (one.id, one.title) in own)
            same = any(set(ids) <= {one.id for one in combination} for ids in finding.explanations for combination in whole)
            told = len(whole) == 1 and len(finding.explanations) > 1
            if same and not told and (all(one.title in finding.text for one in shown) or not evidence.explains(shown, shown)):
                continue  # the same bug in the same variant
            index, place = self.findings.index(finding), About(finding.component, finding.dtype, finding.paths)
            after = self.findings[index + 1 :]
            del self.findings[index:]
            if evidence.explains(shown, shown):
                self.explained(place, evidence, [shown])
            elif len(evidence.explained(shown)) > len(evidence.explained(())):
                self.add(place, Verdict.PARTLY, words.partly([shown], [shown], evidence), [shown])
            elif not finding.paths:
                self.findings.append(finding)
            self.findings += after
        named = {id_ for finding in self.findings for ids in finding.explanations for id_ in ids}
        self.known = tuple(one for one in self.known if one.id in named)


def _within_a_model(one: Alteration) -> Alteration:
    """Converts the place of an alteration from a path within a part to one within the model."""
    if one.place is None or one.place.pattern.startswith("**"):
        return one
    return replace(one, place=Place(f"**.{one.place.pattern}"))
