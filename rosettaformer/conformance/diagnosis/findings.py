"""What a diagnosis consists of."""

from dataclasses import dataclass

from .divergence import Backward, Divergence

__all__ = ["Diagnosis", "Finding"]


@dataclass(frozen=True)
class Finding:
    """What is wrong with one component.

    verdict: explained (by exactly one combination), indistinguishable (several explain), follows (from findings in its parts), partly (some
    answers are explained, as those of one path through the port), imprecise (the errors are within those of a lower precision, or what an
    alteration leaves of them is: no equality), described (no alteration explains the answers, but what they are in terms of the reference
    is known), stopped (the search ended early), unexplained, unstable (the same input, another output), gradient (the output is right and
    a gradient is not), error (the port fails on every case).
    explanations: combinations of ids of defects and settings; of several one is meant. paths: the places in a model, where only those are
    meant.
    """

    component: str
    dtype: str
    verdict: str
    explanations: tuple[tuple[str, ...], ...]
    text: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What diagnosis found.

    findings: the smallest components first, then the gradients. divergences: where models that can be traced first diverge, forward.
    gradients: the same backward, of the largest component whose outputs are right. stopped: why the examination ended early; empty where
    it did not.
    """

    findings: list[Finding]
    divergences: list[Divergence]
    gradients: list[Backward]
    stopped: str = ""
