"""The diagnosis of a port: what is wrong with it, by name.

For every component that fails, the smallest first, the alterations are searched whose altered reference equals the port's answers to all of
the component's cases. What is found in a part is tried first on what contains it. Where one name does not explain a model, and its modules
can be traced, the parts that fail on the reference's inputs are searched one by one; then alterations at one place, constants, and two
names together. What nothing explains is described.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..case import Case
from ..deviations import Deviation, stale
from ..expectation.components import COMPONENTS, FORWARD, forward_of
from ..expectation.expectation_store import Store
from ..status import FAILURES, Kind, Status
from . import sentences
from .altered import Combination
from .asked_port import AskedPort
from .cause_search import CauseSearch
from .conclusions import Conclusions
from .evidence import Evidence, Search, crashes, randomness
from .evidence.crashes import Failed
from .evidence.evidence import narrowed
from .evidence.first_wrong import beginning
from .failing_parts import FailingParts
from .findings import Deadline, Diagnosis, Finding, TimeIsUp, Verdict
from .hypotheses import candidates
from .questions import About, Progress, Questions, Task
from .symptoms.common import common_cases


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
) -> Diagnosis:
    """The diagnosis of a port, without findings where everything that it covers conforms.

    components: only these. pairs: search also for two alterations together. gradients: run the
    gradient cases of the components whose outputs are right, and walk the gradients of the largest
    one, where its modules can be traced. limit: seconds of processor time, the port's not among
    them, after which the best so far is returned, as it is at KeyboardInterrupt; None for none.
    answer_limit: seconds for one answer. declared: cases and dtypes in which the port is known to
    deviate, and which are left out; entries: those that declare them. cases: those of a whole model;
    the suite's if None. expression: chooses among the cases; dtypes: only in these. progress is called with what is being
    done and the share of it that is done, say with each sentence as soon as it is known to hold.
    Raises ValueError where the port cannot be started or lacks the mode, MissingBackend where its framework is not installed.
    """
    deadline = Deadline(limit)
    with contextlib.closing(AskedPort(port, mode, answer_limit, declared, deadline, cases, expression, dtypes)) as asked:
        task = Task(asked, pairs, deadline, progress, functools.cache(say), Store())  # nothing is said twice
        conclusions = Conclusions(task)
        examiner = _Examiner(task, conclusions, Questions(task), FailingParts(task, conclusions))
        shown = [Finding(entry, asked.dtypes[0], Verdict.DESCRIBED, (), f"{entry}: {text}") for entry, text in asked.said.items()]
        try:
            for component in COMPONENTS:
                forward = forward_of(component)
                wanted = not examiner.silent and (not components or component in components or (gradients and forward in components))
                if component in asked.covered and wanted and (not forward or (gradients and conclusions.right(forward))):
                    examiner.examine(component)
            if gradients and not examiner.silent:
                examiner.examine_gradients(components or FORWARD)
            examiner.conclude(entries)
        except TimeIsUp as error:
            examiner.stop(str(error))
        except KeyboardInterrupt:
            examiner.stop("interrupted")
        steps = examiner.next_steps(limit) if examiner.stopped else []
        return Diagnosis([*shown, *conclusions.findings], examiner.parts.divergences, examiner.parts.gradients, examiner.stopped, steps)


@dataclass
class _Examiner:
    """Examines component by component. stopped: why it ended early; empty where it did not. silent: a whole model has no answer at all.
    current: what is being searched.
    """

    task: Task
    conclusions: Conclusions
    questions: Questions
    parts: FailingParts
    stopped: str = ""
    silent: bool = False
    current: CauseSearch | None = None

    def examine(self, component: str) -> None:
        """Adds the findings on a component, in the first dtype in which it fails; where it cannot run in float64, in the next one, too."""
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
                    self.conclusions.change(cannot, text=f"{cannot.text}\n  {dtype} conforms")
                return
            if failed or failing:
                self._search(place, search, failed, [other for other in right if other != dtype])
                if answers or cannot or dtype != "float64":
                    return
                cannot = self.conclusions.findings[-1]
            elif answers:
                right.append(dtype)

    def _passes(self, component: str) -> Iterator[tuple[str, bool]]:
        """The dtypes in which a component is asked, and whether every case is: what fails in one is mostly seen in the core of another."""
        dtypes = self.task.port.dtypes_of(component)
        yield from ((dtype, False) for dtype in dtypes)
        yield from ((dtype, True) for dtype in dtypes[1:])

    def _search(self, place: About, search: Search, failed: Failed, right: Sequence[str]) -> None:
        """Adds the findings on a component that fails. right: the dtypes in which it conforms."""
        self._begin(place, search)
        beyond = self.task.port.beyond(place.component)
        self.task.say(sentences.first(place.component, place.dtype, search.evidence, failed, beyond))
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
            conclusions.findings.insert(first, conclusions.findings.pop())  # it is said first
        conclusions.beginning = ""

    def _begin(self, place: About, search: Search) -> None:
        """From here on this is what is being searched, if an answer fails."""
        self.current = None
        if search.evidence.failing:
            self.current = CauseSearch(self.task, self.questions, self.conclusions, self.parts, place, search)

    def _in_its_dtype(self, place: About, search: Search) -> Search:
        """The search among the same values in the dtype that they must have; adds the finding where the port's is a wider one."""
        evidence = search.evidence
        answers, wide = narrowed(evidence.answers, evidence.clean)
        if not wide:
            return search
        search = Search(Evidence(evidence.hypotheses, answers, evidence.failed))
        cases, failing = f"{len(wide)} of {len(answers)} cases", bool(search.evidence.failing)
        self.conclusions.add(place, Verdict.DESCRIBED, sentences.wide(cases, place.dtype, min(wide.values()), failing))
        self._begin(place, search)
        return search

    def _crashed(self, place: About, crashed: Failed, random: Sequence[Case], evidence: Evidence, found: Sequence[Combination]) -> None:
        """Adds the finding that the port has no answer to some cases. found: what explains the answers to the others."""
        cases = [case for case, _ in crashed]
        alike = [] if random else crashes.alike(candidates(cases, self.task.defects), cases, evidence, *found[:1])
        text = sentences.crashed(crashes.sentence(crashed, [*random, *evidence.probes]), alike)
        self.conclusions.add(place, Verdict.ERROR, text, alike)

    def _unstable(self, place: About, cases: Sequence[Case]) -> None:
        """Adds the finding that two answers to a case differ, with the defects that make the same cases random, and by as much."""
        port = self.task.port
        answers = {index: port.draws(cases[index]) for index in port.random(cases)}
        hypotheses = self.task.hypotheses(cases, place.only_rounds)
        found = randomness.random_defects(hypotheses, answers)
        part = self.parts.first_random(cases[min(answers)]) if answers else ""
        text = sentences.unstable(found, part, randomness.dropping(hypotheses, answers))
        self.conclusions.add(place, Verdict.UNSTABLE, text, found)

    def _silent(self, place: About, failed: Failed) -> bool:
        """Whether a whole model has no answer to any case, for the same reason as to these; then that is the only finding."""
        port, errors = self.task.port, {crashes.kind(error) for _, error in failed}
        if not port.whole or self.conclusions.findings or len(errors) > 1 or any("no answer within" in error for error in errors):
            return False
        replies = [(kind, answer) for _, kind, answer in port.sample()]
        self.silent = not any(kind == Kind.OUTPUTS or crashes.kind(answer) not in errors for kind, answer in replies)
        if self.silent:
            text = f"{crashes.sentence(failed, ())}; nothing else has an answer either"
            self.conclusions.findings.append(Finding(place.component, place.dtype, Verdict.ERROR, (), f"{place.name}: {text}"))
        return self.silent

    def examine_gradients(self, components: Collection[str]) -> None:
        """Walks the gradients of the largest of the components whose outputs are right, and adds the finding where one is wrong."""
        found = self.parts.walk_gradients(filter(self.conclusions.right, components))
        if found and found.first:
            place = About(found.first.component, self.task.port.dtypes[0], [found.first.name])
            self.conclusions.add(place, Verdict.GRADIENT, found.sentence.removeprefix(f"{found.first.name}: "))

    def conclude(self, entries: Sequence[Deviation]) -> None:
        """Adds a finding for whatever else `check` would not pass: what is asked to be refused, a failure that no finding is on, an
        unexpected pass, and outputs that were not compared. entries: the deviations that are declared.
        """
        port, questions, conclusions = self.task.port, self.questions, self.conclusions
        questions.ask_outside()
        dtype = port.dtypes[0] if port.dtypes else ""
        for result in questions.failed:
            if conclusions.right(result.component):
                verdict = Verdict.UNEXPLAINED if result.status == Status.DIFFERS else Verdict.ERROR
                conclusions.add(About(result.component, result.dtype), verdict, f"{result.case} {result.status}: {result.message}")
        if conclusions.findings:
            return
        results = questions.ask_declared()
        for entry in entries:
            if stale(entry, results):
                text = f"every case of {entry.case} passes, and is declared to fail: remove the entry"
                conclusions.add(About(entry.case.partition("/")[0], dtype), Verdict.PASSES, text)
        if not conclusions.findings and (short := questions.shortage(port.hidden)):
            text = ": ".join(filter(None, (short, questions.reason or port.excluded)))
            conclusions.add(About("", dtype), Verdict.NOT_COMPARED, text)

    def stop(self, reason: str) -> None:
        """Ends the examination: what is known of the component that is being searched is its finding."""
        self.stopped = reason
        if self.current is not None:
            evidence = self.current.search.evidence
            failing, right = ([evidence.probes[index] for index in side] for side in (evidence.failing, evidence.right()))
            said = [symptom.sentence for symptom in self.current.symptoms or common_cases(failing, right)]
            verdict = Verdict.DESCRIBED if said else Verdict.STOPPED
            self.conclusions.add(self.current.place, verdict, sentences.stopped(reason, evidence, said))
        elif self.questions.heard is not None:
            place, complaint = self.questions.heard
            self.conclusions.add(place, Verdict.STOPPED, f"{reason}, before all cases were run\n  first seen: {complaint}")

    def next_steps(self, limit: float | None) -> list[str]:
        """What to do after the limit has stopped the search."""
        compared = (Status.PASS, *FAILURES)
        states = any(result.component == "states" and result.status in compared for result in self.questions.results)
        return sentences.next_steps(limit, self.task.port.whole, states)
