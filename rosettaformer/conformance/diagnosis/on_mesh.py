"""The examination of a port on meshes: what its outputs show of the sharding, for each component that fails."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reference_numpy.sharding import Mesh

from ...processes import thread_share
from ..case import DTYPES, Case
from ..hidden import Hidden
from ..limits import for_port
from ..ports.port import MissingBackend
from ..ports.process import Worker
from ..reference.components import ASKED
from ..reference.expectation_store import Store
from ..result import Result, judge
from ..runner import Question, open_worker, unable
from ..status import FAILURES, Kind
from . import sharding
from .deadline import Deadline, TimeIsUp
from .findings import Diagnosis, Finding, Verdict
from .tracing import Progress


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
    """The diagnosis of a port by cases on meshes: of each component that fails on a mesh, in the first dtype in which it does, what
    `sharding.fingerprint` says of its outputs, or how they differ. Arguments and errors as `examination.diagnose`.
    """
    deadline, store = Deadline(limit), Store()
    asked = [case for case in cases if case.mesh and (not components or case.component in components)]
    asked = [case for case in asked if not {(case.id, dtype) for dtype in case.dtypes} <= {*declared}]
    findings: list[Finding] = []
    stopped = ""
    try:
        for mesh in dict.fromkeys(case.mesh for case in asked):
            own = [case for case in asked if case.mesh == mesh]
            with contextlib.closing(open_worker(port, thread_share(), mesh=mesh)) as worker:
                for finding in _Examiner(worker, mesh, mode, deadline, answer_limit, progress, store).findings(own):
                    findings.append(finding)
                    say(f"{finding.component}: {finding.text}")
    except TimeIsUp as error:
        stopped = str(error)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Diagnosis(findings, [], [], stopped)


@dataclass
class _Examiner:
    """Examines a port on one mesh."""

    worker: Worker
    mesh: Mesh | None
    mode: str
    deadline: Deadline
    limit: float
    progress: Progress
    store: Store

    def findings(self, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yields what is found of each component. Raises ValueError if the port does not start, MissingBackend without its framework."""
        kind, about = self.worker.greeting
        if kind == Kind.MISSING:
            raise MissingBackend(about)
        if kind != Kind.READY:
            raise ValueError(f"the port {self.worker.port} must start on the mesh {self.mesh}; got {kind}: {about}")
        cases = for_port(cases, about)
        own = [component for component in ASKED if any(case.component == component for case in cases)]
        for count, component in enumerate(own):
            self.progress(f"{component} on {self.mesh}", count / len(own))
            for dtype in (dtype for dtype in DTYPES if dtype in about["dtypes"]):
                meant = [case for case in cases if case.component == component and dtype in case.dtypes]
                if sentences := [*self._sentences([case for case in meant if not unable(case, dtype, "cpu", about)[0]], dtype, about)]:
                    yield self._finding(component, dtype, sentences)
                    break

    def _sentences(self, cases: Sequence[Case], dtype: str, about: dict[str, Any]) -> Iterator[tuple[Result, str]]:
        """Yields the results that fail, each with what its outputs show."""
        for case in cases:
            self.deadline.check()
            asked = case.at(dtype, mode=self.mode or about["modes"][0])
            kind, answer = self.worker.ask(asked, self.deadline.within(self.limit))
            expected = self.store.expect(asked) if kind == Kind.OUTPUTS else {}
            result = judge(Question(case, Hidden((), (), 0), dtype, "cpu", asked.mode).row(self.worker.port), kind, answer, expected)
            if result.status in FAILURES:
                yield result, sharding.fingerprint(asked, expected, answer) if kind == Kind.OUTPUTS else ""

    def _finding(self, component: str, dtype: str, found: Sequence[tuple[Result, str]]) -> Finding:
        """The finding on the cases of a component that fail: what their outputs show, or how the first differs."""
        known = dict.fromkeys(sentence for _, sentence in found if sentence)
        result = found[0][0]
        text = "; ".join(known) or f"{result.case} {result.status}: {result.message}"
        verdict = Verdict.DESCRIBED if known else Verdict.UNEXPLAINED
        return Finding(component, dtype, verdict, (), f"on {self.mesh}: {text}, on {len(found)} cases")
