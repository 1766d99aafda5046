"""Diagnoses a port: names the known bugs that explain its outputs.

For every failing component, smallest first, the search looks for alterations of the reference that
give the port's outputs on all cases of the component. Explanations of a part are tried first on
the components that contain it. If no single alteration explains a model whose modules can be
traced, its failing parts are searched one by one; then come alterations at one place, constants and
pairs. Outputs that nothing explains are described.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..case import Case
from ..deviations import Deviation, stale
from ..expectation.components import COMPONENTS, FILES, FORWARD, forward_of
from ..expectation.expectation_store import Store
from ..status import FAILURES, Kind, Status
from . import words
from .altered import Combination
from .asked_port import AskedPort
from .cause_search import CauseSearch
from .conclusions import Conclusions
from .evidence import Evidence, Search, crashes, randomness
from .evidence.crashes import Failed
from .evidence.evidence import narrowed
from .evidence.first_wrong import beginning
from .evidence.invariances import broken_invariances
from .failing_parts import FailingParts
from .findings import Deadline, Diagnosis, Finding, PartIsUp, TimeIsUp, Verdict
from .hypotheses import candidates
from .questions import About, Progress, Questions, Task
from .symptoms.common import common_cases

EACH = 60.0  # seconds for one component
INTERRUPTED = "interrupted"  # why an examination ended


def diagnose(
    port: str,
    components: Sequence[str] = (),
    mode: str = "",
    pairs: bool = True,
    gradients: bool = True,
    limit: float | None = None,
    answer_limit: float = 60.0,
    declared: Collection[tuple[str, str]] = (),
    entries: Sequence[Deviation] = (),
    cases: Sequence[Case] | None = None,
    expression: str | None = None,
    dtypes: Sequence[str] = (),
    progress: Progress = lambda what, share: None,
    say: Callable[[str], None] = lambda sentence: None,
    store: Store | None = None,
) -> Diagnosis:
    """Diagnoses a port; the result has no findings if everything that the port covers conforms.

    components: examine only these. pairs: also search for two alterations at once. gradients: run
    the gradient cases of components with correct outputs, and walk the gradients of the largest
    one if its modules can be traced. limit: processor seconds of the search, without the port's
    own, after which, as on KeyboardInterrupt, the best result so far is returned; None for EACH per
    component. answer_limit: seconds for one answer. declared: cases and dtypes that are expected to
    fail and are left out; entries: their declarations. cases: the cases of a whole model; the suite
    if None. expression: selects among the cases. dtypes: ask only in these. progress is called with
    the current step and its finished share; say is called with each sentence once it is known to
    hold. store: keeps expectations, by default for this run only. Raises ValueError if the port
    does not start or lacks the mode, MissingBackend if its framework is not installed.
    """
    deadline = Deadline(limit, EACH if limit is None else None)
    with contextlib.closing(AskedPort(port, mode, answer_limit, declared, deadline, cases, expression, dtypes)) as asked:
        task = Task(asked, pairs, deadline, progress, functools.cache(say), store or Store())  # the cache drops repeated sentences
        conclusions = Conclusions(task)
        examiner = _Examiner(task, conclusions, Questions(task), FailingParts(task, conclusions))
        said = [(entry, Verdict.DESCRIBED if status in FAILURES else Verdict.NOT_COMPARED, text) for entry, status, text in asked.said]
        shown = [Finding(entry, asked.dtypes[0], verdict, (), words.finding(entry, text)) for entry, verdict, text in said]
        try:
            for finding in shown:
                task.say(finding.text)
            for component in (*COMPONENTS, *FILES):
                forward = forward_of(component)
                wanted = not examiner.silent and (not components or component in components or (gradients and forward in components))
                if component in asked.covered and wanted and (not forward or (gradients and conclusions.right(forward))):
                    deadline.begin()
                    try:
                        examiner.examine(component)
                    except PartIsUp as error:
                        examiner.stop(str(error))
            deadline.begin()
            if gradients and not examiner.silent:
                examiner.examine_gradients(components or FORWARD)
            examiner.conclude(entries)
        except TimeIsUp as error:
            examiner.stop(str(error))
        except KeyboardInterrupt:
            examiner.stop(INTERRUPTED)
        steps = examiner.next_steps(limit)
        return Diagnosis([*shown, *conclusions.findings], examiner.parts.divergences, examiner.parts.gradients, examiner.stopped, steps)


@dataclass
class _Examiner:
    """Examines component by component.

    stopped: why the examination ended early; empty if it did not. silent: whether a whole model
    fails on every case. current: the running search.
    """

    task: Task
    conclusions: Conclusions
    questions: Questions
    parts: FailingParts
    stopped: str = ""
    silent: bool = False
    current: CauseSearch | None = None

    def examine(self, component: str) -> None:
        """Adds the findings on a component in its first failing dtype; errors try the next one."""
        cannot = None
        right: list[str] = []
        for dtype, every in self._passes(component):
            self.task.deadline.check()
            place = About(component, dtype, only_rounds=bool(right) and self.task.port.whole)
            if every and not self.questions.fails_beyond(place):
                continue
            search, failed = self.questions.ask(place, every or bool(cannot))
            answers, failing = search.evidence.answers, search.evidence.failing
            if failed and not answers and self._silent(place, failed):
                return
            if cannot and not failing:
                if answers and not failed:
                    self.conclusions.change(cannot, text=words.conforms(cannot.text, dtype))
                return
            if failed or failing:
                self._search(place, search, failed, [other for other in right if other != dtype])
                if answers or cannot or dtype != "float64":
                    return
                cannot = self.conclusions.findings[-1]
            elif answers:
                right.append(dtype)

    def _passes(self, component: str) -> Iterator[tuple[str, bool]]:
        """The dtypes in which a component is asked, each with whether every case is asked.

        The core cases of a further dtype usually show its failures.
        """
        dtypes = self.task.port.dtypes_of(component)
        yield from ((dtype, False) for dtype in dtypes)
        yield from ((dtype, True) for dtype in dtypes[1:])

    def _search(self, place: About, search: Search, failed: Failed, right: Sequence[str]) -> None:
        """Adds the findings on a failing component. right: the dtypes in which it conforms."""
        self._begin(place, search)
        beyond = self.task.port.beyond(place.component)
        self.task.say(words.first(place.component, place.dtype, search.evidence, failed, beyond))
        self.questions.heard = None
        search = self._in_its_dtype(place, search)
        evidence, conclusions = search.evidence, self.conclusions
        conclusions.beginning = beginning(evidence, place.dtype, right)
        random = [case for case, error in failed if randomness.RANDOM in error]
        crashed = [(case, error) for case, error in failed if randomness.RANDOM not in error]
        found: list[Combination] = []
        first = len(conclusions.findings)
        touched = randomness.made_random(evidence.hypotheses, evidence.failing)
        if random or self.task.port.random(evidence.probes[index] for index in touched):
            self._unstable(place, [*random, *evidence.probes])
        elif self.current:
            found = self.current.run()
        self.current = None
        if crashed:
            self._crashed(place, crashed, random, evidence, found)
            conclusions.findings.insert(first, conclusions.findings.pop())  # it comes first
        conclusions.beginning = ""

    def _begin(self, place: About, search: Search) -> None:
        """Makes this the running search if an output is wrong."""
        self.current = None
        if search.evidence.failing:
            self.current = CauseSearch(self.task, self.questions, self.conclusions, self.parts, place, search)

    def _in_its_dtype(self, place: About, search: Search) -> Search:
        """Casts outputs of too wide a dtype, reports them, and returns the search on them."""
        evidence = search.evidence
        answers, wide = narrowed(evidence.answers, evidence.clean)
        if not wide:
            return search
        search = Search(Evidence(evidence.hypotheses, answers, evidence.failed))
        cases, failing = f"{len(wide)} of {len(answers)} cases", bool(search.evidence.failing)
        self.conclusions.add(place, Verdict.DESCRIBED, words.wide(cases, place.dtype, min(wide.values()), failing))
        self._begin(place, search)
        return search

    def _crashed(self, place: About, crashed: Failed, random: Sequence[Case], evidence: Evidence, found: Sequence[Combination]) -> None:
        """Adds the finding that the port raises. found: what explains the other outputs."""
        cases = [case for case, _ in crashed]
        alike = [] if random else crashes.alike(candidates(cases, self.task.defects), cases, evidence, *found[:1])
        text = words.crashed(crashes.sentence(crashed, [*random, *evidence.probes]), alike)
        self.conclusions.add(place, Verdict.ERROR, text, alike)

    def _unstable(self, place: About, cases: Sequence[Case]) -> None:
        """Adds the finding that outputs are random, with the known bugs that match."""
        port = self.task.port
        answers = {index: port.draws(cases[index]) for index in port.random(cases)}
        hypotheses = self.task.hypotheses(cases, place.only_rounds)
        found = randomness.random_defects(hypotheses, answers)
        part = self.parts.first_random(cases[min(answers)]) if answers else ""
        text = words.unstable(found, part, randomness.dropping(hypotheses, answers))
        self.conclusions.add(place, Verdict.UNSTABLE, text, found)

    def _silent(self, place: About, failed: Failed) -> bool:
        """Whether a whole model fails on every case for this reason; adds the only finding."""
        port, errors = self.task.port, {crashes.kind(error) for _, error in failed}
        if not port.whole or self.conclusions.findings or len(errors) > 1 or any("no answer within" in error for error in errors):
            return False
        replies = [(kind, answer) for _, kind, answer in port.sample()]
        self.silent = not any(kind == Kind.OUTPUTS or crashes.kind(answer) not in errors for kind, answer in replies)
        if self.silent:
            text = words.finding(place.name, words.silent(crashes.sentence(failed, ())))
            self.conclusions.findings.append(Finding(place.component, place.dtype, Verdict.ERROR, (), text))
        return self.silent

    def examine_gradients(self, components: Collection[str]) -> None:
        """Walks the largest correct component's gradients; adds a finding if one is wrong."""
        found = self.parts.walk_gradients(filter(self.conclusions.right, components))
        if found and found.first:
            place = About(found.first.component, self.task.port.dtypes[0], [found.first.name])
            self.conclusions.add(place, Verdict.GRADIENT, found.sentence.removeprefix(f"{found.first.name}: "))

    def conclude(self, entries: Sequence[Deviation]) -> None:
        """Adds a finding for everything else that `check` would not pass.

        These are ids out of range, failures without a finding, unexpected passes, and too few
        comparisons. entries: the declared expected failures.
        """
        port, questions, conclusions = self.task.port, self.questions, self.conclusions
        questions.ask_outside()
        dtype = port.dtypes[0] if port.dtypes else ""
        for result in questions.failed:
            if conclusions.right(result.component):
                verdict = Verdict.UNEXPLAINED if result.status == Status.DIFFERS else Verdict.ERROR
                conclusions.add(About(result.component, result.dtype), verdict, words.failed_case(result))
        if conclusions.findings:
            return
        results = questions.ask_declared()
        for entry in entries:
            if stale(entry, results):
                conclusions.add(About(entry.case.partition("/")[0], dtype), Verdict.PASSES, words.unexpected_pass(entry.case))
        if not conclusions.findings and (short := questions.shortage(port.hidden)):
            text = words.shortage(short, questions.reason or port.excluded)
            conclusions.add(About("", dtype), Verdict.NOT_COMPARED, text)

    def stop(self, reason: str) -> None:
        """Ends the examination with a finding on the component being searched."""
        self.stopped = reason
        if self.current is not None:
            evidence = self.current.search.evidence
            failing, right = ([evidence.probes[index] for index in side] for side in (evidence.failing, evidence.right()))
            said = [symptom.sentence for symptom in self.current.symptoms]
            if self.task.port.whole and not said and reason != INTERRUPTED:
                self.task.deadline.lift()
                said = broken_invariances(evidence, self.task.port.ask)
            said = said or [symptom.sentence for symptom in common_cases(failing, right)]
            verdict = Verdict.DESCRIBED if said else Verdict.STOPPED
            self.conclusions.add(self.current.place, verdict, words.stopped(reason, evidence, said))
            self.current = None
        elif self.questions.heard is not None:
            place, complaint = self.questions.heard
            self.conclusions.add(place, Verdict.STOPPED, words.stopped_before(reason, complaint))

    def next_steps(self, limit: float | None) -> list[str]:
        """The next steps: after the limit, what finds more; else the dtypes after a component's first
        failing one.
        """
        if self.stopped:
            compared = (Status.PASS, *FAILURES)
            states = any(result.component == "states" and result.status in compared for result in self.questions.results)
            return words.next_steps(limit, self.task.port.whole, states)
        wrong = [one for one in self.conclusions.findings if one.verdict not in (Verdict.NOT_COMPARED, Verdict.PASSES)]
        early = dict.fromkeys(one.component for one in wrong if one.dtype in self.task.port.dtypes_of(one.component)[:-1])
        return [words.CHECK_AGAIN.format(f"further dtypes of {words.listed([*early])}")] if early else []
