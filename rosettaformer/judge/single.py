"""Runs one case at a time: a port's process stays open between them."""

import time
from collections.abc import Sequence

from ..common.processes import cores
from .case import Case
from .expectation.components import is_layout
from .expectation.expectation_store import Store
from .result import Result, judge
from .runner import Question, open_worker, unable
from .status import Kind, Status
from .suite import all_cases
from .suite.limits import Hidden, fitted_to, for_port


class Single:
    """A port that answers one case at a time. It must be closed."""

    def __init__(self, port: str, sharers: int = 1, store: Store | None = None, cases: Sequence[Case] | None = None) -> None:
        """sharers: how many processes like this one share the machine. store: keeps expectations. cases: those of a whole model; the
        suite's if None.
        """
        self._port, self._store = port, store or Store()
        self._worker = open_worker(port, max(1, cores() // sharers))
        kind, self._about = self._worker.greeting
        self.ready = kind == Kind.READY  # whether the port has started
        asked = for_port(fitted_to(self._about, cases), self._about) if self.ready else ()
        self._cases = {case.id: case for case in asked}
        own = all_cases(grad=True) if asked and self._about["config"] and cases is None else ()
        self._hidden = Hidden(asked, own)

    def is_other_layout(self, case_id: str) -> bool:
        """Whether the case's component belongs to a layout, a division of a model into modules, that is not the port's."""
        component = case_id.partition("/")[0]
        return self.ready and is_layout(component) and component not in self._about["components"]

    def unable(self, case_id: str, dtype: str, mode: str) -> tuple[Status | None, str]:
        """Returns the status of a case that the port is not asked, and the reason."""
        if not self.ready:
            kind, reason = self._worker.greeting
            return Status(kind), reason
        if mode and mode not in self._about["modes"]:
            return Status.NOT_COVERED, f"the port has no mode {mode}"
        return unable(self._cases[case_id], dtype, "cpu", self._about)

    def result(self, case_id: str, dtype: str, mode: str, limit: float) -> Result:
        """Returns the outcome of the case, as the port is asked it, within at most that many seconds."""
        status, reason = self.unable(case_id, dtype, mode)
        if status:
            return Result(case_id, case_id.partition("/")[0], self._port, dtype, "cpu", mode, status, reason)
        question = Question(self._cases[case_id], self._hidden, dtype, "cpu", mode or self._about["modes"][0])
        started = time.monotonic()
        kind, answer = self._worker.ask(question.case.at(dtype, "cpu", question.mode), limit)
        row = question.row(self._port) | {"seconds": time.monotonic() - started}
        expected = question.followed(question.expected(self._store), answer) if kind == Kind.OUTPUTS else {}
        return judge(row, kind, answer, expected)

    def close(self) -> None:
        """Ends the port's process."""
        self._worker.close()
