"""The port under diagnosis: its process, the cases that it covers, and its answers."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ..case import DTYPES, Case
from ..catalogue import all_defects
from ..ports.session import Session
from ..result import of_pair
from ..status import FAILURES, LEFT, Kind, Status
from ..suite import all_cases
from ..suite.asked import Suite
from ..suite.expression import choose
from ..suite.fitting import fits, within
from .altered import Outputs
from .evidence.randomness import DRAWS, RANDOM, twice
from .findings import Deadline

Reply = tuple[Case, str, Any]  # a case, the kind of the port's answer to it, and the answer


class AskedPort:
    """A port in its process.

    mode: empty for the port's own. limit: seconds for one answer. declared: the cases and dtypes to
    leave out. deadline: raises `TimeIsUp` once it has passed. cases: the cases of a whole model;
    the suite if None. expression: selects among them, like `-k`. dtypes: ask only in these; all if
    empty. Raises ValueError if the port does not start, lacks the mode, or is a whole model without
    cases; MissingBackend if its framework is not installed.
    """

    def __init__(
        self, port: str, mode: str, limit: float, declared: Collection[tuple[str, str]], deadline: Deadline,
        cases: Sequence[Case] | None = None, expression: str | None = None, dtypes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.port, self._limit, self._mode, self._declared, self._deadline = port, limit, mode, declared, deadline
        self.whole = cases is not None
        if expression is not None:
            cases = choose(all_cases(grad=True) if cases is None else cases, expression)
        self._session = Session(port, Suite(cases), threads=2)
        try:
            self._session.require(mode)
            found = self._session.asked
        except BaseException:
            self.close()
            raise
        self.worker, self._about = self._session.worker, found.about
        self.covered: Collection[str] = found.about["components"]
        self.framework: str = found.about.get("loaded", "")
        shown = found.about.get("findings", {}).items()  # an exported file shows these without being run
        self.said = [(place, status, text) for place, (status, text) in shown if status in (*FAILURES, Status.NOT_SHOWN)]
        self.hidden = found.hidden
        left = [case for case in found.cases if not case.excluded]
        narrowed = (dataclasses.replace(case, dtypes=within(fits(case), dtypes)) for case in left if not case.outside)
        self.all_cases = [case for case in narrowed if case.dtypes]
        own = [dtype for dtype in DTYPES if dtype in found.about["dtypes"]]
        self.dtypes = [dtype for dtype in own if any(dtype in case.dtypes for case in self.all_cases)] or own
        self.outside = [case for case in left if case.outside]
        self.excluded = next((case.excluded for case in found.cases if case.excluded), "")

    @property
    def limit(self) -> float:
        """Seconds for one answer."""
        self._deadline.check()
        return self._limit

    def promised(self, case: Case) -> str:
        """How an exported file's manifest says it handles the case's id out of range."""
        return str(self._about.get("ids", {}).get(case.outside, ""))

    def close(self) -> None:
        """Ends the port's process."""
        self._session.close()

    def dtypes_of(self, component: str) -> list[str]:
        """The port's dtypes, that with the most cases first (float32 for searches)."""
        own = [case.dtypes for case in self.all_cases if case.component == component]
        return sorted(self.dtypes, key=lambda dtype: -sum(dtype in dtypes for dtypes in own))

    def beyond(self, component: str) -> int:
        """The number of cases of the component that none of the port's dtypes covers."""
        return sum(case.component == component and not set(case.dtypes) & set(self.dtypes) for case in self.all_cases)

    def cases(self, component: str, dtype: str, every: bool = False) -> list[Case]:
        """The component's cases in a dtype; except in its first dtype only core cases and those
        specific to the dtype.

        every: all cases in any dtype.
        """
        cases = [case for case in self.all_cases if case.component == component and dtype in case.dtypes]
        cases = [case for case in cases if (case.id, dtype) not in self._declared]
        if dtype != self.dtypes_of(component)[0] and not every:  # other failures were seen in the first dtype
            cases = [case for case in cases if case.core or _claims(case, dtype)]
        return [case.at(dtype, mode=self._mode) for case in cases]

    @property
    def declared(self) -> list[Case]:
        """The declared cases, each in its declared dtypes."""
        pairs = ((case, dtype) for case in self.all_cases for dtype in case.dtypes)
        return [case.at(dtype, mode=self._mode) for case, dtype in pairs if (case.id, dtype) in self._declared and dtype in self.dtypes]

    def undeclared(self, components: Collection[str]) -> list[Case]:
        """The cases of these components that are not declared in any dtype."""
        declared = {case for case, _ in self._declared}
        return [case for case in self.all_cases if case.component in components and case.id not in declared]

    def ask(self, cases: Iterable[Case], heard: Callable[[Case, str, Any], None] = lambda case, kind, answer: None) -> list[Reply]:
        """The replies to the cases; heard is called with each one as it arrives."""
        cases, replies = list(cases), []
        for case, (kind, answer) in zip(cases, self.worker.answers(cases, self.limit), strict=True):
            self._deadline.check()
            wrong = of_pair(case.component, bool(case.inputs.get("return_weights")), answer) if kind == Kind.OUTPUTS else ""
            kind, answer = (Kind.DIFFERS, wrong) if wrong else (kind, answer)
            heard(case, kind, answer)
            replies.append((case, kind, answer))
        return replies

    def sample(self) -> list[Reply]:
        """The replies to the first case of every component and dtype that the port accepts."""
        every = [self.cases(component, dtype)[:1] for dtype in self.dtypes for component in self.covered]
        return [reply for reply in self.ask(case for cases in every for case in cases) if reply[1] not in LEFT]

    def first(self, case: Case) -> Outputs | None:
        """The output for the case in a fresh process of the port; None if it has none."""
        with contextlib.closing(Session(self.port, Suite(()), threads=2)) as other:
            if not other.ready:
                return None
            ((kind, answer),) = other.worker.answers([dataclasses.replace(case, twice=False)], self.limit)
        return answer if kind == Kind.OUTPUTS else None

    def random(self, cases: Iterable[Case]) -> list[int]:
        """The indices of the cases for which two outputs of the port differ."""
        return [index for index, (*_, answer) in enumerate(self.ask(twice(cases))) if RANDOM in str(answer)]

    def draws(self, case: Case) -> list[Outputs]:
        """Several outputs for the same case."""
        replies = self.ask([dataclasses.replace(case, twice=False)] * DRAWS)
        return [answer for _, kind, answer in replies if kind == Kind.OUTPUTS]


def _claims(case: Case, dtype: str) -> bool:
    """Whether the case catches a known bug that shows in this dtype but not in every dtype."""
    defects = [defect for defect in all_defects().values() if defect.id in case.catches and not defect.unobservable]
    return any(dtype in defect.dtypes and len(defect.dtypes) < len(DTYPES) for defect in defects)
