"""What has been concluded of a port: the findings so far, what is known from them, and those on parts that the whole is yet to settle."""

from collections.abc import Sequence
from dataclasses import replace

from ..catalogue import Alteration
from ..catalogue.alteration import Place
from . import sentences
from .altered import Combination
from .evidence import Evidence
from .evidence.distinguishing import plainest, told_apart
from .evidence.invariances import broken_invariances, remembered
from .findings import Finding, Verdict
from .questions import About, Task
from .symptoms import Symptom, only_at

SAYING = 50  # the specificity from which a symptom says what the output is, not only something about it


State = tuple[list[Finding], Combination, list[tuple[Finding, Evidence]], dict[Alteration, list[Alteration]]]


class Conclusions:
    """The findings on a port, the smallest components first.

    known: the alterations that explain what was examined so far. open: findings on parts, with their evidence, until what explains the
    whole settles them. beginning: where the error of a whole model begins, which every finding on it says first.
    """

    def __init__(self, task: Task) -> None:
        self.findings: list[Finding] = []
        self.known: Combination = ()
        self.open: list[tuple[Finding, Evidence]] = []
        self.beginning = ""
        self._task, self._port = task, task.port
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
        ids = tuple(tuple(one.id for one in combination) for combination in found)
        fixes = [sentences.fix(one, self._port.framework) for one in found[0]] if len(found) == 1 and verdict != Verdict.FOLLOWS else []
        text = ": ".join(filter(None, (place.name, "" if place.paths else self.beginning, text)))
        self._task.say(text)
        self.findings.append(Finding(place.component, place.dtype, verdict, ids, "\n".join([text, *fixes]), tuple(place.paths)))
        return self.findings[-1]

    def change(self, finding: Finding, text: str, verdict: Verdict | None = None) -> None:
        """Gives a finding other words, and another verdict if one is given."""
        changed = replace(finding, text=text, verdict=verdict or finding.verdict)
        self.findings[self.findings.index(finding)] = changed
        self.open = [(changed if one is finding else one, evidence) for one, evidence in self.open]

    def explained(self, place: About, evidence: Evidence, found: list[Combination]) -> Finding:
        """Adds the finding that these, each alone, explain the answers, as far as further cases do not tell them apart; the first of them
        is known from then on."""
        follows = found[0] == self.known
        found, told = self._alternatives(found, evidence), ""
        plain = plainest(found, evidence, lambda one: evidence.explains(one, one))
        found, plainer = (plain, plain[0]) if plain != found else (found, None)
        if not place.paths:
            found, told = told_apart(found, evidence, self._port.ask)
        alike = [one for one in found if one != plainer] if plainer in found else []
        found = [one for one in found if one not in alike]
        self._learn([tuple(_within_a_model(one) if place.paths else one for one in combination) for combination in found])
        if follows:
            finding = self.add(place, Verdict.FOLLOWS, sentences.follows(found), found)
            self._settle(found)
            return finding
        others = [case.at(place.dtype) for case in self._port.all_cases if place.dtype in case.dtypes]
        only = only_at(evidence.probes, evidence.answers, evidence.clean) if len(found) > 1 else ""
        text = sentences.explained(found, sentences.where(evidence, found[0]), others, only)
        also = f"  {sentences.alternatives(alike)} would give the same on these cases" if alike else ""
        finding = self.add(
            place, Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, "\n".join(filter(None, (text, told, also))), found
        )
        if not place.paths:
            self._settle(found)
        return finding

    def _alternatives(self, found: list[Combination], evidence: Evidence) -> list[Combination]:
        """The combinations, and those that have in place of what is known what it may be as well."""
        result = list(found)
        for combination in found:
            for index, one in enumerate(combination):
                others = [(*combination[:index], other, *combination[index + 1 :]) for other in self._doubtful.get(one, ())]
                result += [other for other in others if other not in result and evidence.explains(other, other)]
        return result

    def _learn(self, found: list[Combination]) -> None:
        """What the first of these has is known; in place of it may be what the others have there."""
        first = found[0]
        kept = [one for one in self.known if not set(first) & set(self._doubtful.get(one, ()))]  # the others are one of these
        self.known = (*kept, *(one for one in first if one not in kept))
        for index, one in enumerate(first):
            others = [combination[index] for combination in found if len(combination) == len(first)]
            self._doubtful[one] = [other for other in dict.fromkeys(others) if other is not one]

    def nameless(self, place: About, evidence: Evidence, symptoms: Sequence[Symptom]) -> Finding:
        """Adds the finding where no alteration explains the answers: what they are in terms of the reference, or what comes near."""
        said = [symptom.sentence for symptom in symptoms]
        if any(symptom.specificity >= SAYING for symptom in symptoms):
            return self.add(place, Verdict.DESCRIBED, sentences.described(evidence, said))
        if not place.paths and (memory := remembered(evidence, self._port.first)):
            return self.add(place, Verdict.DESCRIBED, sentences.described(evidence, [memory, *said]))
        broken = [] if place.paths else broken_invariances(evidence, self._port.ask)
        return self.add(
            place, Verdict.UNEXPLAINED, sentences.unexplained(evidence, self._task.pairs and not evidence.one_number, [*said, *broken])
        )

    def _settle(self, whole: Sequence[Combination]) -> None:
        """Brings what was said of parts into line with what explains the whole: a part is explained by that, too, or the port divides the
        work otherwise there, and the part is no finding."""
        parts, self.open = self.open, []
        for finding, evidence in parts:
            own = {(one.id, one.title) for one in (*evidence.hypotheses.defects, *evidence.hypotheses.settings)}
            shown = tuple(replace(one, place=None) if one.place else one for one in whole[0] if (one.id, one.title) in own)
            same = any(set(ids) <= {one.id for one in combination} for ids in finding.explanations for combination in whole)
            told = len(whole) == 1 and len(finding.explanations) > 1
            if same and not told and (all(one.title in finding.text for one in shown) or not evidence.explains(shown, shown)):
                continue  # the same mistake, and the same variant of it
            index, place = self.findings.index(finding), About(finding.component, finding.dtype, finding.paths)
            after = self.findings[index + 1 :]
            del self.findings[index:]
            if evidence.explains(shown, shown):
                self.explained(place, evidence, [shown])
            elif len(evidence.explained(shown)) > len(evidence.explained(())):
                self.add(place, Verdict.PARTLY, sentences.partly([shown], [shown], evidence), [shown])
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
