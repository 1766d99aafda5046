"""The examination of a port: what is wrong with it, by name.

For every component that fails, the smallest first, the defects and settings are searched whose altered reference equals the port's answers
to all of the component's cases. What is found in a part is tried first on what contains it. Where one name does not explain a model, and
its modules can be traced, the parts that fail on the reference's inputs are searched one by one; then two names together.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from ..case import Case
from ..defects import all_defects
from ..defects.settings import all_settings
from ..reference.components import COMPONENTS, DIFFERENTIABLE, FORWARD, forward_of
from . import crashes, explanation, stability
from .altered import Combination
from .crashes import Failed
from .divergence import Backward, Divergence, Failure, backward, divergence
from .findings import Diagnosis, Finding
from .hypotheses import Hypotheses, candidates
from .search import Search
from .subject import Subject

__all__ = ["diagnose"]

Progress = Callable[[str, float], None]
TRACED = 2  # a model that no name explains is traced on so many failing cases
SHOWN = 3  # so many places of a finding are listed
TWICE = 3  # the number of cases of a component that are evaluated two times at first
_TRACEABLE = [component for component in FORWARD if component in DIFFERENTIABLE]  # what has one output, which its parts lead to


def diagnose(
    port: str,
    components: Sequence[str] = (),
    mode: str = "",
    pairs: bool = True,
    gradients: bool = True,
    limit: float = 60.0,
    declared: Collection[tuple[str, str]] = (),
    progress: Progress = lambda what, share: None,
) -> Diagnosis:
    """The diagnosis of a port, without findings where everything that it covers conforms.

    components: only these. pairs: search also for two alterations together. gradients: run the gradient cases of the components whose
    outputs are right, and walk the gradients of the largest one, where its modules can be traced. limit: seconds for one answer.
    declared: cases and dtypes in which the port is known to deviate, and which are left out. progress is called with what is being done
    and the share of it that is done.
    Raises ValueError where the port cannot be started or lacks the mode, MissingBackend where its framework is not installed.
    """
    with contextlib.closing(Subject(port, mode, limit, declared)) as subject:
        examiner = _Examiner(subject, pairs, progress)
        for component in COMPONENTS:
            forward = forward_of(component)
            wanted = not components or component in components or (gradients and forward in components)
            if component in subject.covered and wanted and (not forward or (gradients and examiner.right(forward))):
                examiner.examine(component)
        if gradients:
            examiner.examine_gradients(components or FORWARD)
        return Diagnosis(examiner.findings, examiner.divergences, examiner.gradients)


class _Place(NamedTuple):
    """What a finding is about."""

    component: str
    dtype: str
    paths: Sequence[str] = ()


class _Examiner:
    """What has been found so far in a port, and what is yet to be settled: findings on parts of a whole that has not been examined."""

    def __init__(self, subject: Subject, pairs: bool, progress: Progress) -> None:
        self.findings: list[Finding] = []
        self.divergences: list[Divergence] = []
        self.gradients: list[Backward] = []
        self._subject, self._pairs, self._progress = subject, pairs, progress
        self._defects = [defect for defect in all_defects().values() if not defect.unobservable]
        self._settings = list(all_settings().values())
        self._known: Combination = ()
        self._open: list[tuple[Finding, Search]] = []

    def right(self, component: str) -> bool:
        """Whether nothing was found in the component."""
        return all(finding.component != component for finding in self.findings)

    def examine(self, component: str) -> None:
        """Adds the findings on a component, in the first dtype in which it fails."""
        for dtype in self._subject.dtypes:
            self._progress(f"{component} {dtype}", 0.0)
            replies = self._subject.ask(stability.twice(self._subject.cases(component, dtype), TWICE))
            failed = [(case, answer) for case, kind, answer in replies if kind not in ("outputs", "skipped")]
            answered = [(case, answer) for case, kind, answer in replies if kind == "outputs"]
            search = Search(self._hypotheses([case for case, _ in answered]), [answer for _, answer in answered], len(failed))
            if failed or search.failing:
                self._examine(_Place(component, dtype), search, failed)
                return

    def examine_gradients(self, components: Iterable[str]) -> None:
        """Walks the gradients of the largest of the components whose outputs are right, and adds the finding where one is wrong."""
        right = set(components) & set(self._subject.covered) & {component for component in _TRACEABLE if self.right(component)}
        cases = self._subject.undeclared(right)
        if not cases or not self._subject.dtypes:
            return
        dtype, worker, limit = self._subject.dtypes[0], self._subject.worker, self._subject.limit
        case = max(cases, key=lambda case: (list(FORWARD).index(case.component), case.core))
        forward = divergence(worker, case, dtype, limit=limit)
        if not forward.rows:
            return
        found = backward(worker, forward, case, limit=limit, progress=self._part(f"{case.id}, gradients"))
        self.gradients.append(found)
        if found.first:
            name = found.first.name
            self._add(_Place(found.first.component, dtype, [name]), "gradient", found.sentence.removeprefix(f"{name}: "))

    def _part(self, what: str) -> Callable[[float], None]:
        """The progress of one thing that is done, by its share."""
        return lambda share: self._progress(what, share)

    def _examine(self, place: _Place, search: Search, failed: Failed) -> None:
        random = [case for case, error in failed if stability.RANDOM in error]
        crashed = [(case, error) for case, error in failed if stability.RANDOM not in error]
        found: list[Combination] = []
        first = len(self.findings)
        touched = stability.made_random(search.hypotheses) & set(search.failing)
        if random or self._subject.random(search.hypotheses.probes[index] for index in sorted(touched)):
            self._unstable(place, [*random, *search.hypotheses.probes])
        elif search.failing:
            found = self._search(place, search)
        if crashed:
            self._crashed(place, crashed, random, search, found)
            self.findings.insert(first, self.findings.pop())  # it is said first

    def _crashed(self, place: _Place, crashed: Failed, random: Sequence[Case], search: Search, found: Sequence[Combination]) -> None:
        """Adds the finding that the port has no answer to some cases. found: what explains the answers to the others."""
        cases = [case for case, _ in crashed]
        alike = [] if random else crashes.alike(candidates(cases, self._defects), cases, search, *found[:1])
        self._add(place, "error", explanation.crashed(crashes.sentence(crashed, [*random, *search.hypotheses.probes]), alike), alike)

    def _unstable(self, place: _Place, cases: Sequence[Case]) -> None:
        """Adds the finding that two answers to a case differ, with the defects that make the same cases random, and by as much."""
        answers = {index: self._subject.draws(cases[index]) for index in self._subject.random(cases)}
        found = stability.random_defects(self._hypotheses(cases), answers)
        self._add(place, "unstable", explanation.unstable(found), found)

    def _search(self, place: _Place, search: Search) -> list[Combination]:
        """Adds the finding on the answers; returns what explains them."""
        if found := self._found(place, search):
            self._explained(place, search, found)
            self._settle(found)
        elif imprecise := search.imprecise():
            self._add(place, "imprecise", explanation.imprecise(imprecise[0], place.dtype), imprecise)
        elif rest := search.remaining(base := self._cover(search)) or [base] * bool(base):
            self._add(place, "partly", explanation.partly(base, rest, search), rest)
        else:
            symptoms = stability.symptoms(search, self._subject.ask)
            self._open.append((self._add(place, "unexplained", explanation.unexplained(search, self._pairs, symptoms)), search))
        return found

    def _found(self, place: _Place, search: Search) -> list[Combination]:
        """The simplest explanations: one name, what the parts of the model come to, two names, more that each explain something."""
        failures = self._trace(place.dtype, search, 1)
        found = search.explain(self._known)
        if not found and failures:
            self._localise(place.dtype, failures + self._trace(place.dtype, search, TRACED))
            found = search.explain(self._known)
        if not found and self._pairs and not search.imprecise():
            found = search.pairs(self._part(f"{place.component} {place.dtype}, pairs"))
        cover = () if found or not self._pairs else self._cover(search)
        return [cover] if cover and search.explains(cover, self._known) else found

    def _cover(self, search: Search) -> Combination:
        """What explains the most answers, from nothing or from what is known."""
        return max((search.cover(base) for base in ((), self._known)), key=lambda cover: len(search.explained(cover)))

    def _explained(self, place: _Place, search: Search, found: list[Combination]) -> Finding:
        if found == [self._known]:
            return self._add(place, "follows", explanation.follows(self._known), found)
        others = [case.at(place.dtype) for case in self._subject.all_cases if place.dtype in case.dtypes]
        self._known += tuple(one for one in found[0] if one not in self._known)
        verdict = "explained" if len(found) == 1 else "indistinguishable"
        return self._add(place, verdict, explanation.explained(found, explanation.where(search, found[0]), others), found)

    def _settle(self, whole: Sequence[Combination]) -> None:
        """Brings what was said of parts into line with what explains the whole: a part is explained by that, too, or the port divides the
        work otherwise there, and the part is no finding."""
        for finding, search in self._open:
            if any(set(ids) <= {one.id for one in combination} for ids in finding.explanations for combination in whole):
                continue
            index, place = self.findings.index(finding), _Place(finding.component, finding.dtype, finding.paths)
            after = self.findings[index + 1 :]
            del self.findings[index:]
            shown = tuple(one for one in whole[0] if one in (*search.hypotheses.defects, *search.hypotheses.settings))
            if search.explains(shown, shown):
                self._explained(place, search, [shown])
            elif len(search.explained(shown)) > len(search.explained(())):
                self._add(place, "partly", explanation.partly(shown, [shown], search), [shown])
            elif not finding.paths:
                self.findings.append(finding)
            self.findings += after
        self._open = []
        named = {id_ for finding in self.findings for ids in finding.explanations for id_ in ids}
        self._known = tuple(one for one in self._known if one.id in named)

    def _add(self, place: _Place, verdict: str, text: str, found: Sequence[Combination] = ()) -> Finding:
        """Adds a finding, with the fixes of the first of what was found."""
        component, dtype, paths = place
        ids = tuple(tuple(one.id for one in combination) for combination in found)
        where = ", ".join([*paths[:SHOWN], *([f"and {len(paths) - SHOWN} more places"] if len(paths) > SHOWN else [])]) or component
        fixes = [explanation.fix(one, self._subject.framework) for one in found[0]] if found and verdict != "follows" else []
        self.findings.append(Finding(component, dtype, verdict, ids, "\n".join([f"{where}: {text}", *fixes]), tuple(paths)))
        return self.findings[-1]

    def _trace(self, dtype: str, search: Search, count: int) -> list[Failure]:
        """The parts that fail on the reference's inputs, in the count-th case that fails; none where the port shows no parts."""
        if len(search.failing) < count:
            return []
        case, subject = search.hypotheses.probes[search.failing[count - 1]], self._subject
        if case.component not in _TRACEABLE:
            return []
        found = divergence(subject.worker, case, dtype, limit=subject.limit, progress=self._part(f"{case.id}, its parts"))
        if len(found.rows) < 2:
            return []
        if count == 1:
            self.divergences.append(found)
        return _parts(found.failures)

    def _localise(self, dtype: str, failures: Iterable[Failure]) -> None:
        """Adds the findings on the parts of a model that fail on the reference's inputs."""
        parts: dict[str, list[Failure]] = {}
        for failure in failures:
            parts.setdefault(failure.case.component, []).append(failure)
        for component, own in parts.items():
            part = Search(self._hypotheses([failure.case for failure in own]), [{"output": failure.output} for failure in own])
            place = _Place(component, dtype, sorted({failure.path for failure in own}))
            if found := part.explain(self._known) or part.pairs():
                finding = self._explained(place, part, found)
            else:
                finding = self._add(place, "unexplained", explanation.unexplained(part, True, ()))
            self._open.append((finding, part))

    def _hypotheses(self, cases: Sequence[Case]) -> Hypotheses:
        return Hypotheses(cases, *(candidates(cases, kind) for kind in (self._defects, self._settings)))


def _parts(failures: Sequence[Failure]) -> list[Failure]:
    """The parts of the model within which no other fails: what contains them fails because of them."""
    paths = [failure.path for failure in failures]
    return [failure for failure in failures if failure.path and not any(path.startswith(f"{failure.path}.") for path in paths)]
