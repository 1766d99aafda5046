"""What `check` says of the port's answers: a diagnosis never ends with less."""

import dataclasses
from typing import Any

from ..case import Case
from ..cases import all_cases
from ..hidden import Hidden
from ..report.summary import Summary
from ..result import Expected, Result, judge
from ..runner import Question
from ..status import FAILURES, Status


class Checked:
    """The results of the answers of a port, as `check` has them."""

    def __init__(self, port: str) -> None:
        self._port = port
        self._results: dict[tuple[str, str], tuple[Case, Result]] = {}

    def add(self, case: Case, kind: str, answer: Any, expected: Expected) -> None:
        """Judges the answer to a case in its dtype. expected: empty where there is no output."""
        self.put(case, judge(self.row(case), kind, answer, expected))

    def row(self, case: Case) -> dict[str, Any]:
        """The fields of a result that say which case it is of."""
        return Question(case, Hidden((), ()), case.dtype, case.device, case.mode).row(self._port)

    def put(self, case: Case, result: Result) -> None:
        """Adds a result."""
        self._results[case.id, case.dtype] = case, result

    @property
    def failed(self) -> list[Result]:
        """The results that are failures."""
        return [result for _, result in self._results.values() if result.status in FAILURES]

    @property
    def passed(self) -> list[Result]:
        """The results that pass."""
        return [result for _, result in self._results.values() if result.status == Status.PASS]

    @property
    def reason(self) -> str:
        """Why the first case of which nothing was compared is none; empty if there is no such case."""
        left = (result.message for _, result in self._results.values() if result.status not in (Status.PASS, *FAILURES))
        return next(filter(None, left), "")

    def shortage(self, fixed: list[Case]) -> str:
        """What `check` says if too little was shown; empty if enough was.

        fixed: the cases with the config that the port fixes, which may hide what they are about; none if it fixes nothing.
        """
        hidden = Hidden(fixed, all_cases(grad=True) if fixed else ())
        own = {case.id: case for case in fixed}
        found = []
        for case, result in self._results.values():
            reason = hidden.reason(own[case.id]) if result.status == Status.PASS and case.id in own else ""
            found.append(dataclasses.replace(result, status=Status.NOT_SHOWN, message=reason) if reason else result)
        return Summary(found).shortage
