"""The examination of a port: what is wrong with it, by name.

For every component that fails, the smallest first, the defects and settings are searched whose altered truth equals the port's answers to
all of the component's cases. What is found in a part is tried first on what contains it. Where one name does not explain a model, and its
modules can be tapped, the parts that fail on the truth's inputs are searched one by one; then two names together.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from reference_numpy.suggestions import known

from ..case import DTYPES, Case
from ..cases import all_cases
from ..defects import all_defects
from ..divergence import Backward, Divergence, Failure, backward, divergence
from ..port import MissingBackend
from ..runner import open_worker
from ..truth import COMPONENTS, FORWARD, forward_of
from . import explanation, stability
from .altered import Combination
from .findings import Diagnosis, Finding
from .hypotheses import Hypotheses, candidates
from .search import Search
from .settings import all_settings

__all__ = ["diagnose"]

Progress = Callable[[str, float], None]
TAPPED = 2  # a model that no name explains is tapped on so many failing cases
SHOWN = 3  # so many places of a finding are listed
TWICE = 3  # the number of cases of a component that are evaluated two times at first


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

    components: only these. pairs: search also for two alterations together. gradients: put the gradient cases of the components whose
    outputs are right, and walk the gradients of the largest one, where its modules can be tapped. limit: seconds for one answer.
    declared: cases and dtypes in which the port is known to deviate, and which are left out. progress is called with what is being done
    and the share of it that is done.
    Raises ValueError where the port cannot be started or lacks the mode, MissingBackend where its framework is not installed.
    """
    with contextlib.closing(_Examiner(port, mode, limit, declared)) as examiner:
        for component in COMPONENTS:
            forward = forward_of(component)
            wanted = not components or component in components or (gradients and forward in components)
            if component in examiner.covered and wanted and (not forward or (gradients and examiner.right(forward))):
                examiner.examine(component, pairs, progress)
        if gradients:
            examiner.examine_gradients(components or FORWARD, progress)
        return Diagnosis(examiner.findings, examiner.divergences, examiner.gradients)


class _Examiner:
    """A port under examination, and what has been found so far."""

    def __init__(self, port: str, mode: str, limit: float, declared: Collection[tuple[str, str]]) -> None:
        self.findings: list[Finding] = []
        self.divergences: list[Divergence] = []
        self.gradients: list[Backward] = []
        self._mode, self._limit, self._declared = mode, limit, declared
        self._worker = open_worker(port, threads=2)
        kind, about = self._worker.greeting
        if kind != "ready":
            self.close()
            if kind == "missing":
                raise MissingBackend(about)
            raise ValueError(f"the port {port} must start; got {kind}: {about}")
        if mode not in ("", *about["modes"]):
            self.close()
            known("the mode of this port", [mode], about["modes"])
        self.covered: Sequence[str] = about["components"]
        self._framework: str = about.get("framework", "")
        self._dtypes = [dtype for dtype in DTYPES if dtype in about["dtypes"]]
        self._cases = [case for case in all_cases(about["config"], grad=True) if not case.excluded]
        self._defects = [defect for defect in all_defects().values() if not defect.unobservable]
        self._settings = list(all_settings().values())
        self._known: Combination = ()

    def close(self) -> None:
        """Ends the port's process."""
        self._worker.close()

    def right(self, component: str) -> bool:
        """Whether nothing was found in the component."""
        return all(finding.component != component for finding in self.findings)

    def examine(self, component: str, pairs: bool, progress: Progress) -> None:
        """Adds the findings on a component, in the first dtype in which it fails."""
        for count, dtype in enumerate(self._dtypes):
            progress(f"{component} {dtype}", 0.0)
            cases = [case.at(dtype, mode=self._mode) for case in self._cases if case.component == component and self._asks(case, dtype)]
            if count:  # what fails in the first dtype was seen there
                cases = [case for case in cases if case.core or self._claims(case, dtype)]
            replies = self._ask(stability.twice(cases, TWICE))
            search = Search(
                self._hypotheses([case for case, *_ in replies]), [answer if kind == "outputs" else None for _, kind, answer in replies]
            )
            if search.failing:
                self._examine(component, dtype, search, [answer for _, kind, answer in replies if kind != "outputs"], pairs, progress)
                return

    def examine_gradients(self, components: Iterable[str], progress: Progress) -> None:
        """Walks the gradients of the largest of the components whose outputs are right, and adds the finding where one is wrong."""
        right = set(components) & set(self.covered) & {component for component in FORWARD if self.right(component)}
        cases = [case for case in self._cases if case.component in right and not self._declares(case)]
        if not cases or not self._dtypes:
            return
        dtype = self._dtypes[0]
        case = max(cases, key=lambda case: (list(FORWARD).index(case.component), case.core))
        forward = divergence(self._worker, case, dtype, limit=self._limit)
        if not forward.rows:
            return
        found = backward(self._worker, forward, case, limit=self._limit, progress=lambda share: progress(f"{case.id}, gradients", share))
        self.gradients.append(found)
        if found.first:
            name = found.first.name
            self._add(found.first.component, dtype, "gradient", found.sentence.removeprefix(f"{name}: "), paths=[name])

    def _examine(self, component: str, dtype: str, search: Search, errors: list[str], pairs: bool, progress: Progress) -> None:
        if any(stability.RANDOM in error for error in errors):
            self._unstable(component, dtype, search)
        elif not search.answered:
            self._add(component, dtype, "error", f"fails on every case: {errors[0]}")
        elif found := self._found(component, dtype, search, pairs, progress):
            self._explained(component, dtype, search, found)
        elif imprecise := search.imprecise():
            self._add(component, dtype, "imprecise", explanation.imprecise(imprecise[0], self._framework), imprecise)
        else:
            base = self._cover(search)
            if rest := search.remaining(base) or [base] * bool(base):
                self._add(component, dtype, "partly", explanation.partly(base, rest, search, self._framework), rest)
            else:
                symptoms = [*stability.symptoms(search, self._ask), *(f"some cases fail: {error}" for error in errors[:1])]
                self._add(component, dtype, "unexplained", explanation.unexplained(search, pairs, symptoms))

    def _unstable(self, component: str, dtype: str, search: Search) -> None:
        again = self._ask(stability.twice(search.hypotheses.probes))
        random = {index for index, (*_, answer) in enumerate(again) if isinstance(answer, str) and stability.RANDOM in answer}
        found = stability.random_defects(search.hypotheses, random)
        self._add(component, dtype, "unstable", explanation.unstable(found, self._framework), found)

    def _found(self, component: str, dtype: str, search: Search, pairs: bool, progress: Progress) -> list[Combination]:
        """The simplest explanations: one name, what the parts of the model come to, two names, more that each explain something."""
        failures = self._tap(dtype, search, 1, progress)
        found = search.explain(self._known)
        if not found and failures:
            self._localise(dtype, failures + self._tap(dtype, search, TAPPED, progress))
            found = search.explain(self._known)
        if not found and pairs and not search.imprecise():
            found = search.pairs(lambda share: progress(f"{component} {dtype}, pairs", share))
        cover = () if found or not pairs else self._cover(search)
        return [cover] if cover and search.explains(cover) else found

    def _cover(self, search: Search) -> Combination:
        """What explains the most answers, from nothing or from what is known."""
        return max((search.cover(base) for base in ((), self._known)), key=lambda cover: len(search.explained(cover)))

    def _explained(self, component: str, dtype: str, search: Search, found: list[Combination], paths: Sequence[str] = ()) -> None:
        if found == [self._known]:
            self._add(component, dtype, "follows", explanation.follows(self._known), found, paths)
            return
        others = [case.at(dtype) for case in self._cases if dtype in case.dtypes]
        text = explanation.explained(found, len(search.answers), others, self._framework)
        self._add(component, dtype, "explained" if len(found) == 1 else "indistinguishable", text, found, paths)
        self._known += tuple(one for one in found[0] if one not in self._known)

    def _add(
        self, component: str, dtype: str, verdict: str, text: str, found: Iterable[Combination] = (), paths: Sequence[str] = ()
    ) -> None:
        ids = tuple(tuple(one.id for one in combination) for combination in found)
        place = ", ".join([*paths[:SHOWN], *([f"and {len(paths) - SHOWN} more places"] if len(paths) > SHOWN else [])]) or component
        self.findings.append(Finding(component, dtype, verdict, ids, f"{place}: {text}", tuple(paths)))

    def _tap(self, dtype: str, search: Search, count: int, progress: Progress) -> list[Failure]:
        """The parts that fail on the truth's inputs, in the count-th case that fails; none where the port shows no parts."""
        if len(search.failing) < count:
            return []
        case = search.hypotheses.probes[search.failing[count - 1]]
        if case.component not in FORWARD:
            return []
        found = divergence(self._worker, case, dtype, limit=self._limit, progress=lambda share: progress(f"{case.id}, its parts", share))
        if len(found.rows) < 2:
            return []
        if count == 1:
            self.divergences.append(found)
        return list(_parts(found.failures))

    def _localise(self, dtype: str, failures: Iterable[Failure]) -> None:
        """Adds the findings on the parts of a model that fail on the truth's inputs."""
        parts: dict[str, list[Failure]] = {}
        for failure in failures:
            parts.setdefault(failure.case.component, []).append(failure)
        for component, own in parts.items():
            part = Search(self._hypotheses([failure.case for failure in own]), [{"output": failure.output} for failure in own])
            paths = sorted({failure.path for failure in own})
            if found := part.explain(self._known) or part.pairs():
                self._explained(component, dtype, part, found, paths)
            else:
                self._add(component, dtype, "unexplained", explanation.unexplained(part, True, ()), paths=paths)

    def _hypotheses(self, cases: Sequence[Case]) -> Hypotheses:
        return Hypotheses(cases, *(candidates(cases, kind) for kind in (self._defects, self._settings)))

    def _declares(self, case: Case) -> bool:
        return any((case.id, dtype) in self._declared for dtype in DTYPES)

    def _asks(self, case: Case, dtype: str) -> bool:
        return dtype in case.dtypes and (case.id, dtype) not in self._declared

    def _claims(self, case: Case, dtype: str) -> bool:
        """True where the case catches a defect that shows in this dtype and not in every one."""
        return any(dtype in one.dtypes and len(one.dtypes) < len(DTYPES) for one in self._defects if one.id in case.catches)

    def _ask(self, cases: Iterable[Case]) -> list[tuple[Case, str, Any]]:
        """The cases that the port covers, the kind of its answer to each, and the answer."""
        cases = list(cases)
        replies = zip(cases, self._worker.answers(cases, self._limit), strict=True)
        return [(case, kind, answer) for case, (kind, answer) in replies if kind not in ("not covered", "unsupported")]


def _parts(failures: Iterable[Failure]) -> Iterator[Failure]:
    """The parts of the model within which no other fails: what contains them fails because of them."""
    paths = [failure.path for failure in failures]
    for failure in failures:
        if failure.path and not any(path.startswith(f"{failure.path}.") for path in paths):
            yield failure
