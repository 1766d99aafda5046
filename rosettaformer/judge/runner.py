"""Runs cases on ports, each in its own process, so that a crash or a hang costs one result and not
the run.

The reference's expectations are computed at the same time in a single thread of this process,
because summation orders replace module functions.
"""

import contextlib
import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..common.processes import thread_share
from . import outside
from .case import Case
from .expectation import lowered, near_ties
from .expectation.components import SEARCHES
from .expectation.expectation_store import Store
from .expectation.routing import ROUTED
from .ports.session import Session, open_worker
from .result import Expected, Result, judge
from .status import Kind, Status
from .suite.asked import Question, Suite
from .suite.hidden import marked


def run(
    cases: Sequence[Case],
    ports: Sequence[str],
    dtypes: Sequence[str],
    devices: Sequence[str] = ("cpu",),
    modes: Sequence[str] = ("",),
    limit: float = 120.0,
    progress: Callable[[Result], None] = lambda result: None,
    begin: Callable[[str, Counter[str]], None] = lambda port, modes: None,
    last: Callable[[Result], bool] = lambda result: False,
    quick_compile: bool = False,
    store: Store | None = None,
    precision: str = "",
) -> list[Result]:
    """Runs every case on every port, in every dtype, device and mode; the ports run in parallel.

    modes: names of modes; "" is the port's default and "all" every mode that it has. limit: seconds
    for one case, and for the start. progress is called with each result as it arrives, begin with
    each started port and the number of its cases in each mode, from one thread at a time. last:
    ends the run after the first result for which it is true; the remaining cases are "not run".
    quick_compile: see `ports.process.Process`. precision: a lower precision to tolerate, see
    `expectation.lowered`; none if empty. store: keeps expectations, by default for this run only. A
    port restarts for each mesh of the cases.
    """
    threads = thread_share(len(ports))
    observer = _Observer(progress, begin, last)
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as reference, ThreadPoolExecutor(max(1, len(ports))) as pool, _stopping(stopped, reference, pool):
        plan = _Plan(Suite(cases), dtypes, devices, modes, reference, store or Store(), precision)
        meshes = list(dict.fromkeys(case.mesh for case in cases)) or [None]
        opened = functools.partial(
            Session, suite=plan.suite, threads=threads, start_limit=limit, stopped=stopped, quick_compile=quick_compile
        )
        jobs = [
            pool.submit(_run_port, functools.partial(opened, port, mesh=mesh), plan, limit, observer) for mesh in meshes for port in ports
        ]
        results = [result for job in jobs for result in job.result()]
        reference.shutdown(cancel_futures=True)  # a stopped run does not need the rest
        return results


@dataclass
class _Observer:
    """Reports the progress of a run, one thread at a time, and knows whether it is over."""

    progress: Callable[[Result], None]
    begin: Callable[[str, Counter[str]], None]
    last: Callable[[Result], bool]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False

    def report(self, result: Result) -> Result:
        """Reports a result and returns it."""
        with self.lock:
            self.progress(result)
            self.over = self.over or self.last(result)
        return result


@contextlib.contextmanager
def _stopping(stopped: threading.Event, *pools: ThreadPoolExecutor) -> Iterator[None]:
    """Stops everything that waits for a port if the block raises, for example on Ctrl-C."""
    try:
        yield
    except BaseException:
        stopped.set()
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        raise


def expected_of(question: Question, store: Store, precision: str = "") -> Expected:
    """Returns the reference's expectation, or those for valid ids. precision: see `run`."""
    case = question.case.at(question.dtype, question.device)
    if case.outside:
        return outside.expected(case, store, precision)
    found = store.expect(case)
    return marked(lowered.expect(case, found, precision) if precision else found, question.hidden.reason(question.case))


def followed(question: Question, expected: Expected, answer: Any, chosen_btlx: np.ndarray | None = None) -> Expected:
    """Returns the expectation for a port that gave this answer; it may follow other near ties.

    chosen_btlx: the experts that the port says it chose.
    """
    case = question.case.at(question.dtype, question.device)
    return marked(near_ties.followed(case, expected, answer, chosen_btlx=chosen_btlx), question.hidden.reason(question.case))


@dataclass
class _Plan:
    """The questions of a run, and the reference's expectations, computed once for all ports."""

    suite: Suite
    dtypes: Sequence[str]
    devices: Sequence[str]
    modes: Sequence[str]
    reference: ThreadPoolExecutor
    store: Store
    precision: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # weak, so that an expectation is freed once every port's answer to it has been judged
    _expected: WeakValueDictionary[tuple[int, str, str], Future[Expected]] = field(default_factory=WeakValueDictionary)

    def expected(self, question: Question) -> Future[Expected]:
        """Returns the reference's expectation, and starts its computation if necessary."""
        key = (id(question.case), question.dtype, question.device)
        with self._lock:
            if (found := self._expected.get(key)) is None:
                found = self._expected[key] = self.reference.submit(expected_of, question, self.store, self.precision)
            return found

    def followed(self, question: Question, expected: Expected, answer: Any, chosen: dict[Any, np.ndarray]) -> Expected:
        """Returns the expectation for a port that gave this answer. chosen: the experts that it chose for each prompt."""
        prompt = (question.case.name, question.dtype, question.device, question.mode)
        if question.case.component == ROUTED and answer.keys() == expected.keys():
            chosen[prompt] = answer["output"]
        if question.case.component not in SEARCHES and not any(one.undecided for one in expected.values()):
            return expected
        return self.reference.submit(followed, question, expected, answer, chosen.get(prompt)).result()


def _run_port(open_session: Callable[[], Session], plan: _Plan, limit: float, observer: _Observer) -> list[Result]:
    with contextlib.closing(open_session()) as session:
        results = _judged(session, plan, limit, observer)
    if left := session.worker.left:
        note = f"the port left processes running, which were ended: {left}"
        results.append(observer.report(_of_port(session, Status.LEFT_OVER, note)))
    return results


def _judged(session: Session, plan: _Plan, limit: float, observer: _Observer) -> list[Result]:
    """Returns the results of the cases, or one result that says why the port did not start."""
    if not session.ready:
        return [observer.report(_of_port(session, Status(session.kind), session.about))]
    try:
        questions = session.asked.questions(plan.dtypes, plan.devices, plan.modes)
    except ValueError as error:
        return [observer.report(_of_port(session, Status.NOT_STARTED, str(error)))]
    port, about = session.port, session.about
    posed = [question for question in questions if not question.status]
    with observer.lock:
        observer.begin(port, Counter(question.mode for question in posed))
    chosen: dict[Any, np.ndarray] = {}
    expectations = deque(plan.expected(question) for question in posed)
    answered = ((expectations.popleft(), answer) for answer in session.worker.answers((question.posed for question in posed), limit))
    results = [observer.report(_finding(port, about, *found)) for found in about.get("findings", {}).items()]
    for question in questions:
        row = question.row(port)
        if question.status:
            result = Result(**row, status=question.status, message=question.reason)
        elif observer.over:
            result = Result(**row, status=Status.NOT_RUN, message="after the first failure")
        else:
            started = time.monotonic()
            expectation, (kind, answer) = next(answered)
            row["seconds"] = time.monotonic() - started
            if question.case.outside:
                result = outside.judge(
                    row, question.case, kind, answer, expectation.result(), about.get("ids", {}).get(question.case.outside, "")
                )
            else:
                expected = plan.followed(question, expectation.result(), answer, chosen) if kind == Kind.OUTPUTS else {}
                result = judge(row, kind, answer, expected)
        results.append(observer.report(result))
    return results


def run_alone(session: Session, question: Question, limit: float, store: Store) -> Result:
    """Returns the result of one question within `limit` seconds. store: keeps expectations."""
    row = question.row(session.port)
    if question.status:
        return Result(**row, status=question.status, message=question.reason)
    started = time.monotonic()
    kind, answer = session.worker.ask(question.posed, limit)
    row["seconds"] = time.monotonic() - started
    expected = followed(question, expected_of(question, store), answer) if kind == Kind.OUTPUTS else {}
    return judge(row, kind, answer, expected)


def _of_port(session: Session, status: Status, text: str) -> Result:
    """Returns a result that is about the port and not about a case."""
    return Result("", "", session.port, "", "", "", status, text, mesh=str(session.mesh or ""))


def _finding(port: str, about: dict[str, Any], place: str, found: tuple[str, str]) -> Result:
    """Returns a result that an exported file shows without running. place: as a config entry."""
    status, text = found
    return Result(place, place.partition("/")[0], port, about["dtypes"][0], "cpu", about["modes"][0], Status(status), text)


def describe_ports(ports: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Returns every port's `Worker.greeting`: its description, or the kind of failure."""
    stopped = threading.Event()

    def describe(port: str) -> tuple[str, Any]:
        with contextlib.closing(open_worker(port, 1, stopped=stopped)) as worker:
            return worker.greeting

    with ThreadPoolExecutor(max(1, len(ports))) as pool, _stopping(stopped, pool):
        return dict(zip(ports, pool.map(describe, ports), strict=True))
