"""Diagnoses a port on meshes: what each failing component shows about the sharding."""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.processes import thread_share
from ..case import DTYPES, Case
from ..expectation.expectation_store import Store
from ..ports.session import Session
from ..result import Result, judge
from ..status import FAILURES, Kind, Status
from ..suite.asked import Question, Suite
from ..summary import Summary
from . import words
from .findings import Deadline, Diagnosis, Finding, TimeIsUp, Verdict
from .questions import Progress
from .sharding import Reply, Said, said


def diagnose(
    port: str,
    cases: Sequence[Case],
    components: Sequence[str] = (),
    mode: str = "",
    limit: float | None = None,
    answer_limit: float = 60.0,
    declared: Collection[tuple[str, str]] = (),
    progress: Progress = lambda what, share: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Diagnosis:
    """Diagnoses a port with cases on meshes.

    For each component that fails on a mesh, in the first dtype in which it does, returns the known
    bug of sharded ports that gives every output, or else what the outputs show. Arguments and
    errors are those of `port_diagnosis.diagnose`.
    """
    deadline, store = Deadline(limit), Store()
    wanted = [case for case in cases if case.mesh and (not components or case.component in components)]
    wanted = [case for case in wanted if not {(case.id, dtype) for dtype in case.dtypes} <= {*declared}]
    findings: list[Finding] = []
    stopped = ""
    try:
        for mesh in dict.fromkeys(case.mesh for case in wanted):
            own = [case for case in wanted if case.mesh == mesh]
            with contextlib.closing(Session(port, Suite(own), thread_share(), mesh=mesh)) as session:
                examiner = _Examiner(session, mode, deadline, answer_limit, progress, store)
                for finding in itertools.chain(examiner.findings(), examiner.shortage()):
                    findings.append(finding)
                    say(finding.text)
    except TimeIsUp as error:
        stopped = str(error)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Diagnosis(findings, [], [], stopped, words.next_steps(limit, False, False) if stopped else [])


FEW = 200  # token ids of a case: larger cases are asked only while nothing has failed


@dataclass(frozen=True)
class _Answer:
    """A case's result, the first process's outputs, and how the processes disagree."""

    result: Result
    reply: Reply | None
    apart: str


def _tokens(case: Case) -> int:
    """The number of ids in the case's inputs."""
    return sum(value.size for value in case.inputs.values() if isinstance(value, np.ndarray) and value.dtype.kind in "iu")


@dataclass
class _Examiner:
    """Examines a port on one mesh. unasked: the components of cases not asked in this dtype."""

    session: Session
    mode: str
    deadline: Deadline
    limit: float
    progress: Progress
    store: Store
    unasked: Sequence[str] = ()
    results: list[Result] = field(default_factory=list)

    def shortage(self) -> Iterator[Finding]:
        """Yields a finding if nothing fails on this mesh but too little was compared."""
        if any(result.status in FAILURES for result in self.results):
            return
        if shortage := Summary(self.results).shortage:
            left = next((result.message for result in self.results if result.message), "") or self._reason()
            text = words.finding(f"on {self.session.mesh}", words.shortage(shortage, left))
            yield Finding("", "", Verdict.NOT_COMPARED, (), text)

    def _reason(self) -> str:
        """Why the first skipped case was skipped."""
        asked = self.session.asked
        questions = (asked.question(case, dtype) for case in asked.cases for dtype in case.dtypes)
        return next((question.reason for question in questions if question.status), "")

    def findings(self) -> Iterator[Finding]:
        """Yields the findings on each component, in the first dtype in which it fails.

        Raises ValueError if the port does not start, MissingBackend without its framework, and
        TimeIsUp.
        """
        self.session.require(self.mode)
        asked, about = self.session.asked, self.session.about
        left = list(asked.cases)
        for dtype in (dtype for dtype in DTYPES if dtype in about["dtypes"]):
            every = (asked.question(case, dtype, mode=self.mode) for case in left if dtype in case.dtypes)
            questions = sorted((question for question in every if not question.status), key=lambda question: _tokens(question.case))
            answers: list[_Answer] = []
            late: TimeIsUp | None = None
            try:
                for question in questions:
                    if _tokens(question.case) > FEW and any(answer.result.status in FAILURES for answer in answers):
                        break
                    self.progress(f"{question.case.component} on {self.session.mesh}", len(answers) / len(questions))
                    answers.append(self._answer(question))
            except TimeIsUp as error:
                late = error
            failed = {answer.result.component for answer in answers if answer.result.status in FAILURES}
            self.unasked = [question.case.component for question in questions[len(answers) :]]
            yield from self._found(answers, dtype, about.get("loaded", ""))
            if late:
                raise late
            left = [case for case in left if case.component not in failed]

    def _answer(self, question: Question) -> _Answer:
        """Asks a question and judges the answer. Raises TimeIsUp."""
        self.deadline.check()
        posed = question.posed
        kind, answer = self.session.worker.ask(posed, self.limit)
        each: Sequence[Any] = getattr(self.session.worker, "apart", ()) if kind == Kind.DIFFERS else ()
        expected = self.store.expect(posed) if kind == Kind.OUTPUTS or each else {}
        reply = Reply(posed, expected, each[0] if each else answer) if expected else None
        self.results.append(judge(question.row(self.session.port), kind, answer, expected))
        return _Answer(self.results[-1], reply, answer if each else "")

    def _found(self, answers: Sequence[_Answer], dtype: str, framework: str) -> Iterator[Finding]:
        """Yields one finding if one fault gives every output, otherwise one per component."""
        failing = list(dict.fromkeys(answer.result.component for answer in answers if answer.result.status in FAILURES))
        if len(failing) > 1 and (found := self._said(answers, framework)) and found.ids:
            yield self._finding(failing, dtype, found, answers)
            return
        for component in failing:
            own = [answer for answer in answers if answer.result.component == component]
            if found := self._said(own, framework):
                yield self._finding([component], dtype, found, own)
                continue
            result = next(answer.result for answer in own if answer.result.status in FAILURES)
            verdict = Verdict.UNEXPLAINED if result.status == Status.DIFFERS else Verdict.ERROR
            text = words.on_mesh([component], str(self.session.mesh), words.failed_case(result), 0)
            yield Finding(component, dtype, verdict, (), text)

    def _said(self, answers: Sequence[_Answer], framework: str) -> Said | None:
        """The conclusion about the outputs; without a search once the limit has passed."""
        replies = [answer.reply for answer in answers if answer.reply]
        try:
            return said(replies, framework, self.deadline.check)
        except TimeIsUp:
            return said(replies, framework, None)

    def _finding(self, components: Sequence[str], dtype: str, found: Said, answers: Sequence[_Answer]) -> Finding:
        apart = next((answer.apart for answer in answers if answer.apart), "")
        unasked = sum(component in components for component in self.unasked)
        headline = words.on_mesh(components, str(self.session.mesh), found.text, unasked)
        explanations = tuple((id_,) for id_ in found.ids)
        return Finding(", ".join(components), dtype, found.verdict, explanations, words.lines(headline, apart, *found.lines))
