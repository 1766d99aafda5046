"""Runs ports against cases: every port in its own process, so that a crash, a hang or a wrong dtype is one row and does not end the run.

The reference's expectations are computed here meanwhile, in a single thread, since summation orders replace module functions.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from reference_numpy.sharding import Mesh

from ..common.processes import thread_share
from . import outside
from .case import Case
from .expectation import lowered, near_ties
from .expectation.components import SEARCHES, without_other_layouts
from .expectation.expectation_store import Store
from .ports.command import PREFIX, Command
from .ports.port import ON_ONE_DEVICE, undefined, without
from .ports.process import Process, Worker
from .result import Expected, Result, judge
from .status import Kind, Status
from .suite.limits import Hidden, fitted_to, for_port, marked


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
    """Runs every case in every dtype, on every device and in every mode on every port, the ports in parallel.

    modes: names; "" is the port's default mode and "all" every mode that it has. limit: seconds for one case, and for the start. progress
    is called with each result as it arrives, begin with each port that has started and the number of its cases in each mode, from one
    thread at a time. After the first result for which `last` is true nothing more is asked: the rest is "not run".
    quick_compile: see `ports.process.Process`. precision: the lower one whose cost is allowed (`reference.lowered`); none if empty.
    store: keeps expectations; by default they are kept for this run. For each mesh of the cases a port starts anew.
    """
    threads = thread_share(len(ports))
    observer = _Observer(progress, begin, last)
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as reference, ThreadPoolExecutor(max(1, len(ports))) as pool, _stopping(stopped, reference, pool):
        plan = _Plan(cases, dtypes, devices, modes, reference, store or Store(), precision)
        meshes = list(dict.fromkeys(case.mesh for case in cases)) or [None]
        jobs = [
            pool.submit(_run_port, port, plan, mesh, limit, threads, observer, stopped, quick_compile) for mesh in meshes for port in ports
        ]
        results = [result for job in jobs for result in job.result()]
        reference.shutdown(cancel_futures=True)  # work that a stopped run does not need
        return results


@dataclass
class _Observer:
    """Tells the caller of a run about its progress, one thread at a time, and knows whether the run is over."""

    progress: Callable[[Result], None]
    begin: Callable[[str, Counter[str]], None]
    last: Callable[[Result], bool]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False

    def report(self, result: Result) -> Result:
        """Reports a result, and returns it."""
        with self.lock:
            self.progress(result)
            self.over = self.over or self.last(result)
        return result


@contextlib.contextmanager
def _stopping(stopped: threading.Event, *pools: ThreadPoolExecutor) -> Iterator[None]:
    """If the block raises, such as on Ctrl-C, stops everything that waits for a port and drops work that has not begun."""
    try:
        yield
    except BaseException:
        stopped.set()
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        raise


@dataclass(frozen=True)
class Question:
    """A case as one port is asked it, or the reason why it is not asked. hidden: what the port's config hides."""

    case: Case  # in float64
    hidden: Hidden
    dtype: str
    device: str
    mode: str
    status: Status | None = None
    reason: str = ""

    def row(self, port: str) -> dict[str, Any]:
        """Returns the fields of the port's result that describe the question."""
        where = {"port": port, "dtype": self.dtype, "device": self.device, "mode": self.mode}
        known = {"case": self.case.id, "component": self.case.component, "mesh": str(self.case.mesh or "")}
        return known | where

    def expected(self, store: Store, precision: str = "") -> Expected:
        """Returns what the reference answers; of an id out of range, what it answers to other ids. precision: see `run`."""
        case = self.case.at(self.dtype, self.device)
        if case.outside:
            return outside.expected(case, store, precision)
        found = store.expect(case)
        return marked(lowered.expect(case, found, precision) if precision else found, self.hidden.reason(self.case))

    def followed(self, expected: Expected, answer: Any) -> Expected:
        """Returns what is expected of a port that gave this answer."""
        case = self.case.at(self.dtype, self.device)
        return marked(near_ties.followed(case, expected, answer), self.hidden.reason(self.case))


@dataclass
class _Plan:
    """What a run asks: each port the cases with the config that it fixes; and the reference's answers, each computed once for all ports."""

    cases: Sequence[Case]
    dtypes: Sequence[str]
    devices: Sequence[str]
    modes: Sequence[str]
    reference: ThreadPoolExecutor
    store: Store
    precision: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _fitted: dict[str, tuple[list[Case], Hidden]] = field(default_factory=dict)
    # those that some port waits for: one whose answer is judged needs its memory no longer
    _expected: WeakValueDictionary[tuple[int, str, str], Future[Expected]] = field(default_factory=WeakValueDictionary)

    def questions(self, about: dict[str, Any], mesh: Mesh | None = None) -> list[Question]:
        """Returns the questions on a mesh, or on one device, to a port that describes itself so; cases of other layouts than its own are
        left out if others remain.

        Raises ValueError if its config is invalid, and if it is the port of a whole model and the cases have no folder.
        """
        cases, hidden = self._fit(about)
        cases = [case for case in cases if case.mesh == mesh]
        cases = for_port(without_other_layouts(cases, about["components"]), about)
        dtypes = about["dtypes"] if about.get("artefact") else self.dtypes
        pairs = [(case, dtype) for case in cases for dtype in dtypes if dtype in case.dtypes]
        if any(case.folder for case in cases) and not about.get("artefact"):  # each folder is loaded once
            pairs.sort(key=lambda pair: self.dtypes.index(pair[1]))
        return [
            Question(case, hidden, dtype, device, mode, *unable(case, dtype, device, about))
            for mode in _chosen(self.modes, about["modes"])
            for device in self.devices
            for case, dtype in pairs
        ]

    def expected(self, question: Question) -> Future[Expected]:
        """Returns the reference's answer, whose computation begins at the latest with this call."""
        key = (id(question.case), question.dtype, question.device)
        with self._lock:
            if (found := self._expected.get(key)) is None:
                found = self._expected[key] = self.reference.submit(question.expected, self.store, self.precision)
            return found

    def followed(self, question: Question, expected: Expected, answer: Any) -> Expected:
        """Returns what is expected of a port that gave this answer."""
        if question.case.component not in SEARCHES:
            return expected
        return self.reference.submit(question.followed, expected, answer).result()

    def _fit(self, about: dict[str, Any]) -> tuple[list[Case], Hidden]:
        """Returns the cases that fit a port, and what its config hides of them: the same objects for equal ports."""
        key = repr((sorted(about["config"].items()), *about.get("shared", ()), about.get("suite")))
        with self._lock:
            if key not in self._fitted:
                cases = fitted_to(about, self.cases)
                self._fitted[key] = cases, Hidden(cases, self.cases)
            return self._fitted[key]


def _run_port(
    port: str,
    plan: _Plan,
    mesh: Mesh | None,
    limit: float,
    threads: int,
    observer: _Observer,
    stopped: threading.Event,
    quick_compile: bool,
) -> list[Result]:
    with contextlib.closing(open_worker(port, threads, limit, stopped, quick_compile, mesh)) as worker:
        results = _judged(worker, plan, mesh, limit, observer)
    if worker.left:
        note = f"processes that the port left running, which were ended: {worker.left}"
        results.append(observer.report(Result("", "", port, "", "", "", Status.LEFT_OVER, note, mesh=str(mesh or ""))))
    return results


def _judged(worker: Worker, plan: _Plan, mesh: Mesh | None, limit: float, observer: _Observer) -> list[Result]:
    """Returns the results of the cases, or a single one that says why the port did not start."""
    kind, about = worker.greeting
    if kind != Kind.READY:
        return [observer.report(Result("", "", worker.port, "", "", "", Status(kind), about, mesh=str(mesh or "")))]
    try:
        questions = plan.questions(about, mesh)
    except ValueError as error:
        return [observer.report(Result("", "", worker.port, "", "", "", Status.NOT_STARTED, str(error), mesh=str(mesh or "")))]
    asked = [question for question in questions if not question.status]
    with observer.lock:
        observer.begin(worker.port, Counter(question.mode for question in asked))
    expectations = deque(plan.expected(question) for question in asked)
    cases = (question.case.at(question.dtype, question.device, question.mode) for question in asked)
    answers = worker.answers(cases, limit)
    answered = ((expectations.popleft(), answer) for answer in answers)
    results = [observer.report(_finding(worker.port, about, *found)) for found in about.get("findings", {}).items()]
    for question in questions:
        row = question.row(worker.port)
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
                expected = plan.followed(question, expectation.result(), answer) if kind == Kind.OUTPUTS else {}
                result = judge(row, kind, answer, expected)
        results.append(observer.report(result))
    return results


def _finding(port: str, about: dict[str, Any], place: str, found: tuple[str, str]) -> Result:
    """Returns the row of what an artefact shows without being run. place: such as an entry of config.json. found: status and words."""
    status, text = found
    return Result(place, place.partition("/")[0], port, about["dtypes"][0], "cpu", about["modes"][0], Status(status), text)


def open_worker(
    port: str,
    threads: int,
    start_limit: float = 120.0,
    stopped: threading.Event | None = None,
    quick_compile: bool = False,
    mesh: Mesh | None = None,
) -> Worker:
    """Starts what answers for a port: its process, or the command that its name holds.

    start_limit: seconds in which it must start. Once stopped is set, whoever waits for the port gets `Stopped`. quick_compile, mesh:
    see `Process`.
    """
    if port.startswith(PREFIX):
        return Command(port, threads, start_limit, stopped)
    return Process(port, threads, start_limit, stopped, quick_compile, mesh)


def _chosen(modes: Sequence[str], available: Sequence[str]) -> list[str]:
    chosen = []
    for mode in modes:
        chosen += list(available) if mode == "all" else [mode or available[0]]
    return list(dict.fromkeys(mode for mode in chosen if mode in available))


def unable(case: Case, dtype: str, device: str, about: dict[str, Any]) -> tuple[Status | None, str]:
    """Returns the status of a question that the port is not asked, and the reason."""
    if case.mesh and not about.get("on_mesh"):
        return Status.NOT_COVERED, ON_ONE_DEVICE
    if case.component not in about["components"] and (about.get("whole") or not case.mesh):
        return Status.NOT_COVERED, undefined(case.component)
    if case.excluded:
        return Status.NOT_COVERED, case.excluded
    if dtype in case.too_large:
        return Status.TOO_LARGE, case.too_large[dtype]
    if dtype not in about["dtypes"]:
        return Status.NOT_COVERED, without(dtype)
    kind = device.partition("-")[0]
    count = sum(available.startswith(kind) for available in about.get("devices", ["cpu"]))
    if not count:
        return Status.SKIPPED, f"no {kind} device"
    if case.mesh and kind != "cpu" and count < case.mesh.devices:
        return Status.SKIPPED, f"the mesh {case.mesh} needs {case.mesh.devices} {kind} devices; the port sees {count}"
    return None, ""


def describe_ports(ports: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Returns what every port says about itself: ("ready", versions, devices, precision, modes), or the kind and reason from
    `Worker.greeting`.
    """
    stopped = threading.Event()

    def describe(port: str) -> tuple[str, Any]:
        with contextlib.closing(open_worker(port, 1, stopped=stopped)) as worker:
            return worker.greeting

    with ThreadPoolExecutor(max(1, len(ports))) as pool, _stopping(stopped, pool):
        return dict(zip(ports, pool.map(describe, ports), strict=True))
