"""What a diagnosis consists of, and when it has to end: at a limit of its own processor time.

What it has found until then, or until it is interrupted, is kept.
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


class Deadline:
    """A limit in seconds of this thread's processor time from now; None for no limit.

    The port computes in a process of its own, so neither its start nor its answers count.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.thread_time() + seconds

    def check(self) -> None:
        """Raises TimeIsUp once the limit has passed."""
        if self._end is not None and time.thread_time() > self._end:
            raise TimeIsUp(f"the limit of {self._seconds:g} seconds had passed")


class Verdict(StrEnum):
    """What is known of a component that does not conform."""

    EXPLAINED = "explained"  # by exactly one combination
    INDISTINGUISHABLE = "indistinguishable"  # several explain
    FOLLOWS = "follows"  # from findings in its parts
    PARTLY = "partly"  # some answers are explained, as those of one path through the port
    IMPRECISE = "imprecise"  # errors within those of a lower precision, or what an alteration leaves of them: no equality
    DESCRIBED = "described"  # no alteration explains the answers, but what they are in terms of the reference is known
    STOPPED = "stopped"  # the search ended early
    UNEXPLAINED = "unexplained"
    UNSTABLE = "unstable"  # the same input, another output
    GRADIENT = "gradient"  # the output is right, and a gradient is not
    ERROR = "error"  # the port fails on every case
    NOT_COMPARED = "not compared"  # nothing fails, and too little was shown
    PASSES = "passes"  # although it is declared to fail


@dataclass(frozen=True)
class Finding:
    """What is wrong with one component.

    explanations: combinations of ids of defects and settings; of several one is meant. paths: the places in a model, where only those are
    meant.
    """

    component: str
    dtype: str
    verdict: Verdict
    explanations: tuple[tuple[str, ...], ...]
    text: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What diagnosis found.

    findings: the smallest components first, then the gradients. divergences: where models that can be traced first diverge, forward.
    gradients: the same backward, of the largest component whose outputs are right. stopped: why the examination ended early; empty where
    it did not. next_steps: what to do then.
    """

    findings: list[Finding]
    divergences: list[Divergence]
    gradients: list[Backward]
    stopped: str = ""
    next_steps: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the findings as JSON can hold them."""
        findings = [asdict(finding) for finding in self.findings]
        return versioned("diagnose", {"findings": findings, "stopped": self.stopped, "next_steps": list(self.next_steps)})
