"""The findings on a port so far, and those on parts of a whole that is yet to be examined."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..catalogue import Alteration
from ..catalogue.alteration import Place
from . import explanation, stability
from .altered import Combination
from .examined_port import Subject
from .findings import Finding, Verdict
from .search import Search
from .stability import told_apart
from .symptoms import Symptom, only_at

SHOWN = 3  # places of a finding that are listed
SAYING = 50  # the specificity from which a symptom says what the output is, not only something about it


class About(NamedTuple):
    """What a finding is about."""

    component: str
    dtype: str
    paths: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The component, or the first of the paths."""
        more = len(self.paths) - SHOWN
        return ", ".join([*self.paths[:SHOWN], *([f"and {more} more places"] if more > 0 else [])]) or self.component


State = tuple[list[Finding], Combination, list[tuple[Finding, Search]], dict[Alteration, list[Alteration]]]


class Record:
    """The findings on a port, the smallest components first.

    known: the alterations that explain what was examined so far. open: findings on parts, with their searches, until what explains the
    whole settles them. beginning: where the error of a whole model begins, which every finding on it says first. pairs: whether two
    alterations together are searched. say: is called with every finding.
    """

    def __init__(self, subject: Subject, pairs: bool, say: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.known: Combination = ()
        self.open: list[tuple[Finding, Search]] = []
        self.beginning = ""
        self._subject, self._pairs, self._say = subject, pairs, say
        self._doubtful: dict[Alteration, list[Alteration]] = {}  # what is known, and what it may be as well

    def right(self, component: str) -> bool:
        """Whether nothing was found in the component."""
        return all(finding.component != component for finding in self.findings)

    def saved(self) -> State:
        """What has been found so far, for `restore`."""
        return list(self.findings), self.known, list(self.open), dict(self._doubtful)

    def restore(self, state: State) -> None:
        """Takes back what was found since."""
        self.findings, self.known, self.open, self._doubtful = state

    def forget_parts(self) -> None:
        """Takes back the findings on parts of the whole that is being examined, and what shows only in float64."""
        parts = [finding for finding, _ in self.open]
        self.findings = [finding for finding in self.findings if finding not in parts]
        self.known = tuple(one for one in self.known if not one.rounding or "float32" in one.dtypes)
        self.open = []

    def add(self, place: About, verdict: Verdict, text: str, found: Sequence[Combination] = ()) -> Finding:
        """Adds a finding, with the fixes where one combination was found: of several none is the port's for sure."""
        component, dtype, paths = place
        ids = tuple(tuple(one.id for one in combination) for combination in found)
        fixes = (
            [explanation.fix(one, self._subject.framework) for one in found[0]] if len(found) == 1 and verdict != Verdict.FOLLOWS else []
        )
        text = ": ".join(filter(None, (place.name, "" if paths else self.beginning, text)))
        self._say(text)
        self.findings.append(Finding(component, dtype, verdict, ids, "\n".join([text, *fixes]), tuple(paths)))
        return self.findings[-1]

    def change(self, finding: Finding, text: str, verdict: Verdict | None = None) -> None:
        """Gives a finding other words, and another verdict if one is given."""
        changed = replace(finding, text=text, verdict=verdict or finding.verdict)
        self.findings[self.findings.index(finding)] = changed
        self.open = [(changed if one is finding else one, search) for one, search in self.open]

    def explained(self, place: About, search: Search, found: list[Combination]) -> Finding:
        """Adds the finding that these, each alone, explain the answers, as far as further cases do not tell them apart; the first of them
        is known from then on."""
        follows = found[0] == self.known
        found, told = self._alternatives(found, search), ""
        plain = search.plainest(found, lambda one: search.explains(one, one))
        found, plainer = (plain, plain[0]) if plain != found else (found, None)
        if not place.paths:
            found, told = told_apart(found, search, self._subject.ask)
        alike = [one for one in found if one != plainer] if plainer in found else []
        found = [one for one in found if one not in alike]
        self._learn([tuple(_within_a_model(one) if place.paths else one for one in combination) for combination in found])
        if follows:
            finding = self.add(place, Verdict.FOLLOWS, explanation.follows(found), found)
            self._settle(found)
            return finding
        others = [case.at(place.dtype) for case in self._subject.all_cases if place.dtype in case.dtypes]
        only = only_at(search.hypotheses.probes, search.answers, search.clean) if len(found) > 1 else ""
        text = explanation.explained(found, explanation.where(search, found[0]), others, only)
        also = f"  {explanation.alternatives(alike)} would give the same on these cases" if alike else ""
        finding = self.add(
            place, Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, "\n".join(filter(None, (text, told, also))), found
        )
        if not place.paths:
            self._settle(found)
        return finding

    def _alternatives(self, found: list[Combination], search: Search) -> list[Combination]:
        """The combinations, and those that have in place of what is known what it may be as well."""
        result = list(found)
        for combination in found:
            for index, one in enumerate(combination):
                others = [(*combination[:index], other, *combination[index + 1 :]) for other in self._doubtful.get(one, ())]
                result += [other for other in others if other not in result and search.explains(other, other)]
        return result

    def _learn(self, found: list[Combination]) -> None:
        """What the first of these has is known; in place of it may be what the others have there."""
        first = found[0]
        kept = [one for one in self.known if not set(first) & set(self._doubtful.get(one, ()))]  # the others are one of these
        self.known = (*kept, *(one for one in first if one not in kept))
        for index, one in enumerate(first):
            others = [combination[index] for combination in found if len(combination) == len(first)]
            self._doubtful[one] = [other for other in dict.fromkeys(others) if other is not one]

    def nameless(self, place: About, search: Search, symptoms: Sequence[Symptom]) -> Finding:
        """Adds the finding where no alteration explains the answers: what they are in terms of the reference, or what comes near."""
        sentences = [symptom.sentence for symptom in symptoms]
        if any(symptom.specificity >= SAYING for symptom in symptoms):
            return self.add(place, Verdict.DESCRIBED, explanation.described(search, sentences))
        if not place.paths and (remembered := stability.remembered(search, self._subject.first)):
            return self.add(place, Verdict.DESCRIBED, explanation.described(search, [remembered, *sentences]))
        broken = [] if place.paths else stability.broken_invariances(search, self._subject.ask)
        return self.add(
            place, Verdict.UNEXPLAINED, explanation.unexplained(search, self._pairs and not search.one_number, [*sentences, *broken])
        )

    def _settle(self, whole: Sequence[Combination]) -> None:
        """Brings what was said of parts into line with what explains the whole: a part is explained by that, too, or the port divides the
        work otherwise there, and the part is no finding."""
        parts, self.open = self.open, []
        for finding, search in parts:
            own = {(one.id, one.title) for one in (*search.hypotheses.defects, *search.hypotheses.settings)}
            shown = tuple(replace(one, place=None) if one.place else one for one in whole[0] if (one.id, one.title) in own)
            same = any(set(ids) <= {one.id for one in combination} for ids in finding.explanations for combination in whole)
            told = len(whole) == 1 and len(finding.explanations) > 1
            if same and not told and (all(one.title in finding.text for one in shown) or not search.explains(shown, shown)):
                continue  # the same mistake, and the same variant of it
            index, place = self.findings.index(finding), About(finding.component, finding.dtype, finding.paths)
            after = self.findings[index + 1 :]
            del self.findings[index:]
            if search.explains(shown, shown):
                self.explained(place, search, [shown])
            elif len(search.explained(shown)) > len(search.explained(())):
                self.add(place, Verdict.PARTLY, explanation.partly([shown], [shown], search), [shown])
            elif not finding.paths:
                self.findings.append(finding)
            self.findings += after
        named = {id_ for finding in self.findings for ids in finding.explanations for id_ in ids}
        self.known = tuple(one for one in self.known if one.id in named)


def _within_a_model(one: Alteration) -> Alteration:
    """An alteration at a place of a part, as one of the whole."""
    if one.place is None or one.place.pattern.startswith("**"):
        return one
    return replace(one, place=Place(f"**.{one.place.pattern}"))
