"""What a defect is: a real mistake of ports, with a page of the catalogue."""

from dataclasses import dataclass

from .alteration import Alteration

__all__ = ["Defect"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Defect(Alteration):
    """An alteration that ports were seen to make.

    what: what is computed instead, with the formula. shows: how it shows, and which input reveals it. evidence: where it was made.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    """

    what: str
    shows: str
    evidence: str
    unobservable: str = ""
