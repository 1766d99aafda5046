"""The examination of a port: what is wrong with it, by name.

For every component that fails, the smallest first, the alterations are searched whose altered reference equals the port's answers to all of
the component's cases. What is found in a part is tried first on what contains it. Where one name does not explain a model, and its modules
can be traced, the parts that fail on the reference's inputs are searched one by one; then alterations at one place, constants, and two
names together. What nothing explains is described.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from .. import outside
from ..case import Case
from ..deviations import Deviation, stale
from ..expectation.components import COMPONENTS, FORWARD, forward_of
from ..result import Result, judge
from ..status import FAILURES, Kind, Status
from . import beginning, explanation, stability
from .altered import Combination
from .beginning import Failed
from .common import common_cases
from .examined_port import TRACEABLE, Progress, Subject
from .findings import Deadline, Diagnosis, Finding, TimeIsUp, Verdict
from .hypotheses import candidates
from .inquiry import Inquiry
from .record import About
from .search import Search
from .symptoms import Symptom


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
    the suite's if None. expression: chooses among the cases. progress is called with what is being
    done and the share of it that is done, say with each sentence as soon as it is known to hold.
    Raises ValueError where the port cannot be started or lacks the mode, MissingBackend where its framework is not installed.
    """
    deadline = Deadline(limit)
    with contextlib.closing(Subject(port, mode, answer_limit, declared, deadline, cases, expression)) as subject:
        examiner = _Examiner(subject, pairs, deadline, progress, functools.cache(say))  # nothing is said twice
        examiner.entries = entries
        shown = [Finding(entry, subject.dtypes[0], Verdict.DESCRIBED, (), f"{entry}: {text}") for entry, text in subject.said.items()]
        try:
            for component in COMPONENTS:
                forward = forward_of(component)
                wanted = not examiner.silent and (not components or component in components or (gradients and forward in components))
                if component in subject.covered and wanted and (not forward or (gradients and examiner.record.right(forward))):
                    examiner.examine(component)
            if gradients and not examiner.silent:
                examiner.examine_gradients(components or FORWARD)
            examiner.conclude()
        except TimeIsUp as error:
            examiner.stop(str(error))
        except KeyboardInterrupt:
            examiner.stop("interrupted")
        steps = examiner.next_steps(limit) if examiner.stopped else []
        findings, tracing = [*shown, *examiner.record.findings], examiner.tracing
        return Diagnosis(findings, tracing.divergences, tracing.gradients, examiner.stopped, steps)


class _Examiner(Inquiry):
    """Examines component by component. stopped: why it ended early; empty where it did not. silent: a whole model has no answer at all.
    entries: the deviations that are declared.
    """

    stopped = ""
    silent = False
    entries: Sequence[Deviation] = ()

    def examine(self, component: str) -> None:
        """Adds the findings on a component, in the first dtype in which it fails; where it cannot run in float64, in the next one, too."""
        cannot = None
        right: list[str] = []
        for dtype, every in self._passes(component):
            self._deadline.check()
            self._only_rounds = bool(right) and self._subject.whole
            place = About(component, dtype)
            if every and not self._fails_beyond(place):
                continue
            search, failed = self._ask(place, every or bool(cannot))
            if failed and not search.answers and self._silent(place, failed):
                return
            if cannot and not search.failing:
                if search.answers and not failed:
                    self.record.change(cannot, text=f"{cannot.text}\n  {dtype} conforms")
                return
            if failed or search.failing:
                self._current, self._symptoms = (place, search) if search.failing else None, []
                self._say(explanation.first(component, dtype, search, failed, self._subject.beyond(component)))
                self._heard = None
                search = self._in_its_dtype(place, search)
                self.record.beginning = beginning.beginning(search, dtype, [other for other in right if other != dtype])
                self._examine(place, search, failed)
                self.record.beginning = ""
                if search.answers or cannot or dtype != "float64":
                    return
                cannot = self.record.findings[-1]
            elif search.answers:
                right.append(dtype)

    def _passes(self, component: str) -> Iterator[tuple[str, bool]]:
        """The dtypes in which a component is asked, and whether every case is: what fails in one is mostly seen in the core of another."""
        dtypes = self._subject.dtypes_of(component)
        yield from ((dtype, False) for dtype in dtypes)
        yield from ((dtype, True) for dtype in dtypes[1:])

    def conclude(self) -> None:
        """Adds a finding for whatever else `check` would not pass: what is asked to be refused, a failure that no finding is on, an
        unexpected pass, and outputs that were not compared.
        """
        subject = self._subject
        self._ask_outside()
        dtype = subject.dtypes[0] if subject.dtypes else ""
        for result in self.checked.failed:
            if self.record.right(result.component):
                verdict = Verdict.UNEXPLAINED if result.status == Status.DIFFERS else Verdict.ERROR
                self.record.add(About(result.component, result.dtype), verdict, f"{result.case} {result.status}: {result.message}")
        if self.record.findings:
            return
        results = self._ask_declared()
        for entry in self.entries:
            if stale(entry, results):
                text = f"every case of {entry.case} passes, and is declared to fail: remove the entry"
                self.record.add(About(entry.case.partition("/")[0], dtype), Verdict.PASSES, text)
        if not self.record.findings and (short := self.checked.shortage(subject.hidden)):
            reason = self.checked.reason or subject.excluded
            text = ": ".join(filter(None, (short, reason)))
            self.record.add(About("", dtype), Verdict.NOT_COMPARED, text)

    def _ask_declared(self) -> list[Result]:
        """The results of the cases that are declared to fail."""
        results = []
        for case, kind, answer in self._subject.ask(self._subject.declared):
            expected = self._store.expect(case) if kind == Kind.OUTPUTS else {}
            result = judge(self.checked.row(case), kind, answer, expected)
            failed = result.status in FAILURES
            self.checked.put(case, dataclasses.replace(result, status=Status.DEVIATION) if failed else result)
            results.append(result)
        return results

    def _ask_outside(self) -> None:
        """Asks the cases whose ids are out of range, of which a file says what becomes of them."""
        cases = [case.at(dtype) for case in self._subject.outside for dtype in case.dtypes if dtype in self._subject.dtypes]
        for case, kind, answer in self._subject.ask(cases):
            expected = outside.expected(case, self._store) if kind == Kind.OUTPUTS else {}
            promised = self._subject.promised(case)
            self.checked.put(case, outside.judge(self.checked.row(case), case, kind, answer, expected, promised))

    def _silent(self, place: About, failed: Failed) -> bool:
        """Whether a whole model has no answer to any case, for the same reason as to these; then that is the only finding."""
        errors = {beginning.kind(error) for _, error in failed}
        if not self._subject.whole or self.record.findings or len(errors) > 1 or any("no answer within" in error for error in errors):
            return False
        replies = [(kind, answer) for _, kind, answer in self._subject.sample()]
        self.silent = not any(kind == Kind.OUTPUTS or beginning.kind(answer) not in errors for kind, answer in replies)
        if self.silent:
            text = f"{beginning.sentence(failed, ())}; nothing else has an answer either"
            self.record.findings.append(Finding(place.component, place.dtype, Verdict.ERROR, (), f"{place.name}: {text}"))
        return self.silent

    def stop(self, reason: str) -> None:
        """Ends the examination: what is known of the component that is being searched is its finding."""
        self.stopped = reason
        if self._current is not None:
            place, search = self._current
            sentences = self._sentences or [symptom.sentence for symptom in self._where(search)]
            verdict = Verdict.DESCRIBED if sentences else Verdict.STOPPED
            self.record.add(place, verdict, explanation.stopped(reason, search, sentences))
        elif self._heard is not None:
            place, complaint = self._heard
            self.record.add(place, Verdict.STOPPED, f"{reason}, before all cases were run\n  first seen: {complaint}")

    def _where(self, search: Search) -> list[Symptom]:
        """What the cases that fail have in common, where nothing else is known."""
        probes = search.hypotheses.probes
        return common_cases([probes[index] for index in search.failing], [probes[index] for index in search.right()])

    def next_steps(self, limit: float | None) -> list[str]:
        """What to do after the limit has stopped the search."""
        states = any(result.component == "states" for result in (*self.checked.passed, *self.checked.failed))
        return explanation.next_steps(limit, self._subject.whole, states)

    def examine_gradients(self, components: Iterable[str]) -> None:
        """Walks the gradients of the largest of the components whose outputs are right, and adds the finding where one is wrong."""
        found = self.tracing.backward(filter(self.record.right, components))
        if found and found.first:
            name, dtype = found.first.name, self._subject.dtypes[0]
            self.record.add(About(found.first.component, dtype, [name]), Verdict.GRADIENT, found.sentence.removeprefix(f"{name}: "))

    def _examine(self, place: About, search: Search, failed: Failed) -> None:
        random = [case for case, error in failed if stability.RANDOM in error]
        crashed = [(case, error) for case, error in failed if stability.RANDOM not in error]
        found: list[Combination] = []
        first = len(self.record.findings)
        touched = stability.made_random(search.hypotheses, search.failing)
        if random or self._subject.random(search.hypotheses.probes[index] for index in touched):
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
        alike = [] if random else beginning.alike(candidates(cases, self._defects), cases, search, *found[:1])
        self.record.add(
            place, Verdict.ERROR, explanation.crashed(beginning.sentence(crashed, [*random, *search.hypotheses.probes]), alike), alike
        )

    def _unstable(self, place: About, cases: Sequence[Case]) -> None:
        """Adds the finding that two answers to a case differ, with the defects that make the same cases random, and by as much."""
        answers = {index: self._subject.draws(cases[index]) for index in self._subject.random(cases)}
        hypotheses = self._hypotheses(cases)
        found = stability.random_defects(hypotheses, answers)
        part = stability.random_part(cases[min(answers)], self._subject) if answers and place.component in TRACEABLE else ""
        self.record.add(place, Verdict.UNSTABLE, explanation.unstable(found, part, stability.dropping(hypotheses, answers)), found)
