"""The result of a diagnosis, and the limit on its processor time.

A diagnosis that reaches the limit or is interrupted keeps its findings.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ...common.outputs import versioned
from .divergence import Backward, Divergence


class TimeIsUp(Exception):
    """The limit has passed."""


class PartIsUp(TimeIsUp):
    """The limit for one component has passed."""


class Deadline:
    """A limit on this thread's processor time, in seconds from now; None for no limit.

    The port runs in its own process, so neither its start nor its answers count. each: the limit
    from the last `begin`.
    """

    def __init__(self, seconds: float | None = None, each: float | None = None) -> None:
        self._limits = {TimeIsUp: seconds, PartIsUp: each}
        self._ends: dict[type[TimeIsUp], float] = {}
        self._start(TimeIsUp)

    def begin(self) -> None:
        """Restarts the limit of one part."""
        self._start(PartIsUp)

    def lift(self) -> None:
        """Ends the limits, so that what the port showed can still be described."""
        self._ends.clear()

    def check(self) -> None:
        """Raises TimeIsUp once the limit has passed, PartIsUp if it is that of one part."""
        for error, end in self._ends.items():
            if time.thread_time() > end:
                raise error(f"the limit of {self._limits[error]:g} seconds has passed")

    def _start(self, error: type[TimeIsUp]) -> None:
        if (seconds := self._limits[error]) is not None:
            self._ends[error] = time.thread_time() + seconds


class Verdict(StrEnum):
    """The kind of a finding on a component that does not conform."""

    EXPLAINED = "explained"  # by exactly one combination
    INDISTINGUISHABLE = "indistinguishable"  # several combinations explain it
    FOLLOWS = "follows"  # from findings in its parts
    PARTLY = "partly"  # some outputs are explained, such as those of one code path
    IMPRECISE = "imprecise"  # errors as large as a lower precision makes them, or equal except for the last digits
    DESCRIBED = "described"  # unexplained, but described in terms of the reference
    STOPPED = "stopped"  # the search ended early
    UNEXPLAINED = "unexplained"
    UNSTABLE = "unstable"  # equal inputs give different outputs
    GRADIENT = "gradient"  # the output is correct, a gradient is wrong
    ERROR = "error"  # the port raises an error
    NOT_COMPARED = "not compared"  # nothing fails, but too little was compared
    PASSES = "passes"  # although it is declared to fail


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a component.

    explanations: combinations of ids of known bugs and settings, one of which applies. paths: the
    places in a model, if the finding is only about those.
    """

    component: str
    dtype: str
    verdict: Verdict
    explanations: tuple[tuple[str, ...], ...]
    text: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    findings: smallest components first, then the gradients. divergences: where traced models first
    diverge in the forward pass. gradients: where the largest component with correct outputs
    diverges in the backward pass. stopped: why the examination ended early; empty if it did not.
    next_steps: what to do in that case.
    """

    findings: list[Finding]
    divergences: list[Divergence]
    gradients: list[Backward]
    stopped: str = ""
    next_steps: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the findings as a JSON object."""
        findings = [asdict(finding) for finding in self.findings]
        return versioned("diagnose", {"findings": findings, "stopped": self.stopped, "next_steps": list(self.next_steps)})
