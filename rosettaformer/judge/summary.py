"""The summary of a run: counts, verdict, and whether enough was compared."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ..common.outputs import versioned
from .case import SUITE_RELEASE
from .result import Result
from .status import FAILURES, UNANSWERED, Status

ACCEPTED = (Status.DEVIATION,)
WORDS = {Status.DEVIATION: "expected to fail"}  # other statuses are their own words
SHOWING_NOTHING = (Status.NOT_COMPARABLE, Status.EMPTY)  # the port answered, but nothing can be compared


@dataclass(frozen=True)
class Cell:
    """One cell of the results table: a component and dtype in a column.

    counts: its cases by status. ratio: the largest. other: why nothing was compared (unsupported by
    OP, not covered, skipped). passed, failed, accepted, left: the numbers of cases that passed,
    that failed, that failed as declared, and that were not compared.
    """

    counts: Counter[str]
    ratio: float
    other: str
    passed = property(lambda self: self.counts[Status.PASS])
    failed = property(lambda self: sum(self.counts[status] for status in FAILURES))
    accepted = property(lambda self: sum(self.counts[status] for status in ACCEPTED))
    compared = property(lambda self: self.passed + self.failed + self.accepted)
    left = property(lambda self: self.counts.total() - self.compared)


class Summary:
    """The results of a run, ordered for a report.

    min_cases: the least number of comparisons. incomplete: a run may conform even if outputs are
    missing, cases are vacuous under a port's config, or no output of a component can be compared.
    left: the results that were not compared.
    """

    def __init__(self, results: Sequence[Result], min_cases: int = 1, incomplete: bool = False) -> None:
        self.results = list(results)
        self.stale = [result for result in results if result.status == Status.STALE]
        self.failed = [result for result in results if result.status in FAILURES] + self.stale
        self.passed = [result for result in results if result.status == Status.PASS]
        self.accepted = [result for result in results if result.status in ACCEPTED]
        self.left = [result for result in results if result.status not in (Status.PASS, Status.STALE, *FAILURES, *ACCEPTED)]
        self._cells: dict[tuple[tuple[str, str], tuple[str, str, str]], list[Result]] = {}
        for result in results:
            where = (result.component, result.dtype), (result.port, result.mode, result.place)
            self._cells.setdefault(where, []).append(result)
        self._min_cases = max(1, min_cases)
        self._incomplete = incomplete
        self._counts = Counter(result.status for result in results)

    @property
    def compared(self) -> int:
        """The number of comparisons; crashes count."""
        return len(self.failed) - len(self.stale) + len(self.passed) + len(self.accepted)

    @property
    def shortage(self) -> str:
        """Why too little was compared; empty if enough was."""
        if unstarted := dict.fromkeys(result.port for result in self.results if result.status == Status.NOT_STARTED):
            return f"{', '.join(unstarted)} did not start"
        if not self.compared:
            return "nothing was compared"
        problems = []
        if self.compared < self._min_cases:
            problems.append(f"only {counted(self.compared, 'comparison')}; --min-cases requires {self._min_cases}")
        if self.accepted and not (self.passed or self.failed):
            problems.append("no comparison passed")
        if not self._incomplete:
            if missing := self._counts[Status.NOT_GIVEN]:
                problems.append(f"{missing} of {counted(len(self.results) - len(self.stale), 'output')} missing")
            if hidden := self._counts[Status.NOT_SHOWN]:
                problems.append(f"{counted(hidden, 'case')} cannot fail under the port's config")
            if self.unshown:
                problems.append(f"no output of {', '.join(self.unshown)} can be compared")
        return "; ".join(problems)

    @property
    def unshown(self) -> list[str]:
        """The components without any comparable output, with the port if there are several."""
        asked: dict[tuple[str, str], set[str]] = {}
        for result in self.results:
            asked.setdefault((result.port, result.component), set()).add(result.status)
        several = len({port for port, _ in asked}) > 1
        found = [
            pair
            for pair, statuses in asked.items()
            if statuses & set(SHOWING_NOTHING) and not statuses & {Status.PASS, *FAILURES, *ACCEPTED}
        ]
        return [f"{component} in {port}" if several else component for port, component in found]

    @property
    def conforms(self) -> bool:
        """Whether enough was compared and every failure is declared."""
        return not (self.shortage or self.failed)

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        if not self.conforms:
            word = "fails" if self.without_answers else "differs"
            return "; ".join(filter(None, (word if self.failed else "", self.shortage)))
        parts = self.counted(*ACCEPTED, Status.NOT_COMPARABLE, Status.NOT_SHOWN, Status.NOT_GIVEN, Status.TOO_LARGE)
        if self.incomparable_parts:
            parts.append(f"{self.incomparable_parts} single outputs that are not comparable")
        return f"conforms except {', '.join(parts)}" if parts else "all conform"

    @property
    def without_answers(self) -> bool:
        """Whether every failure is one without an output, so that nothing differs."""
        return all(result.status in UNANSWERED for result in self.failed)

    @property
    def incomparable_parts(self) -> int:
        """The number of incomparable outputs in cases that pass with their other outputs."""
        return sum(len(result.incomparable) for result in self.passed)

    def counted(self, *statuses: Status) -> list[str]:
        """Returns the number of results with each of these statuses that occurs."""
        return [f"{self._counts[status]} {WORDS.get(status, status)}" for status in statuses if self._counts[status]]

    @property
    def not_compared(self) -> Counter[tuple[str, Status, str]]:
        """The number of skipped results by port, status and reason."""
        return Counter((result.port, result.status, result.message) for result in self.left)

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """Port, mode and place (`Result.place`), in the order of the run."""
        return list(dict.fromkeys((result.port, result.mode, result.place) for result in self.results if result.component))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Component and dtype, in the order of the run."""
        return list(dict.fromkeys((result.component, result.dtype) for result in self.results if result.component))

    def cell(self, row: tuple[str, str], column: tuple[str, str, str]) -> Cell:
        """Returns the cell of a row and a column."""
        results = self._cells.get((row, column), [])
        ratios = [result.ratio for result in results if not math.isnan(result.ratio)]
        others = [f"{result.status} by {result.message}" if result.status == Status.UNSUPPORTED else result.status for result in results
                  if result.status not in (Status.PASS, *FAILURES, *ACCEPTED)]  # fmt: skip
        return Cell(Counter(result.status for result in results), max(ratios, default=math.nan), others[0] if others else "")

    def noise(self, row: tuple[str, str]) -> float:
        """Returns plain NumPy's largest error in the row's dtype over the row's cases."""
        noises = [result.noise for result in self.results if (result.component, result.dtype) == row and not math.isnan(result.noise)]
        return max(noises, default=math.nan)

    def to_dict(self) -> dict[str, Any]:
        """Returns the results and totals as a JSON object; NaN and infinity become null."""
        fields = {
            "rosettaformer": version("rosettaformer"),
            "suite": SUITE_RELEASE,
            "verdict": self.verdict,
            "compared": self.compared,
            "passed": len(self.passed),
            "failed": len(self.failed),
            "accepted": len(self.accepted),
            "incomparable_parts": self.incomparable_parts,
            "not_compared": [
                {"port": port, "status": status, "reason": reason, "count": count}
                for (port, status, reason), count in self.not_compared.items()
            ],
            "results": [jsonable(dataclasses.asdict(result)) for result in self.results],
        }
        return versioned("check", fields)


def counted(number: int, what: str) -> str:
    """Returns the number and the noun, in the plural unless the number is 1."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def jsonable(value: Any) -> Any:
    """Returns the value with NaN and infinity replaced with None."""
    if isinstance(value, dict):
        return {name: jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
