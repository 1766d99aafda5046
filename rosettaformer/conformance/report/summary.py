"""What a run comes to."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ..runner import FAILURES, Result

__all__ = ["Cell", "Summary"]


@dataclass(frozen=True)
class Cell:
    """A component, dtype and column of the matrix: how many cases passed and failed, and the worst ratio."""

    passed: int
    failed: int
    ratio: float
    other: str  # why nothing was compared: unsupported by OP, not covered, skipped


class Summary:
    """The results of a run, ordered for a report."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = list(results)
        self.failed = [result for result in results if result.status in FAILURES]
        self.passed = [result for result in results if result.status == "pass"]

    @property
    def compared(self) -> int:
        """How many outputs were compared, or should have been: a crash counts."""
        return len(self.failed) + len(self.passed)

    @property
    def conforms(self) -> bool:
        """True where something was compared and nothing failed."""
        return bool(self.passed) and not self.failed

    @property
    def not_compared(self) -> Counter[tuple[str, str, str]]:
        """How many results were not compared, by port, status and reason."""
        others = (result for result in self.results if result.status not in ("pass", *FAILURES))
        return Counter((result.port, result.status, result.message) for result in others)

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """Port, mode and device, in the order of the run."""
        return list(dict.fromkeys((result.port, result.mode, result.device) for result in self.results if result.component))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Component and dtype, in the order of the run."""
        return list(dict.fromkeys((result.component, result.dtype) for result in self.results if result.component))

    def cell(self, row: tuple[str, str], column: tuple[str, str, str]) -> Cell:
        """What the results of a row and a column come to."""
        results = [
            result
            for result in self.results
            if (result.component, result.dtype) == row and (result.port, result.mode, result.device) == column
        ]
        passed = sum(result.status == "pass" for result in results)
        failed = sum(result.status in FAILURES for result in results)
        ratios = [result.ratio for result in results if not math.isnan(result.ratio)]
        others = [f"{result.status} by {result.message}" if result.status == "unsupported" else result.status for result in results
                  if result.status not in ("pass", *FAILURES)]  # fmt: skip
        return Cell(passed, failed, max(ratios, default=math.nan), others[0] if others else "")

    def noise(self, row: tuple[str, str]) -> float:
        """The largest error of plain NumPy in the row's dtype over the row's cases."""
        noises = [result.noise for result in self.results if (result.component, result.dtype) == row and not math.isnan(result.noise)]
        return max(noises, default=math.nan)

    def to_dict(self) -> dict[str, Any]:
        """The results and totals as JSON can hold them; numbers that JSON lacks are null."""
        return {
            "rosettaformer": version("rosettaformer"),
            "compared": self.compared,
            "passed": len(self.passed),
            "failed": len(self.failed),
            "not_compared": [
                {"port": port, "status": status, "reason": reason, "count": count}
                for (port, status, reason), count in self.not_compared.items()
            ],
            "results": [
                {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
                for row in map(dataclasses.asdict, self.results)
            ],
        }
