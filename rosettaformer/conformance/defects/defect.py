"""What a defect is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Defect"]


@dataclass(frozen=True)
class Defect:
    """A real mistake of ports, as an alteration of the truth.

    replaces: `module.function` of reference_numpy -> the altered function. evidence: where it was made. dtypes: where it shows.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    """

    id: str
    title: str
    component: str
    evidence: str
    replaces: Mapping[str, Callable]
    dtypes: tuple[str, ...] = ("float32",)
    unobservable: str = ""
