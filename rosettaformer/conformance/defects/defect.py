"""What a defect is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Defect"]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A real mistake of ports, as an alteration of the reference.

    what: what is computed instead, with the formula. shows: how it shows, and which input reveals it. torch, tf, jax: its fix in that
    framework. evidence: where it was made. replaces: `module.function` of reference_numpy (a name of more parts is a whole one) -> the
    altered function, which takes the function that it replaces first, then that function's arguments under the same names. dtypes: where
    it shows. rounding: it alters how these dtypes round, and nothing in float64. random: it draws at random, so that two evaluations of
    one input differ.
    unobservable: why no output can reveal it; empty for a defect that the cases must catch.
    """

    id: str
    title: str
    component: str
    replaces: Mapping[str, Callable]
    what: str
    shows: str = ""
    torch: str
    tf: str
    jax: str
    evidence: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    rounding: bool = False
    random: bool = False
    unobservable: str = ""

    @property
    def fix(self) -> dict[str, str]:
        """The fix by framework."""
        return {"torch": self.torch, "tf": self.tf, "jax": self.jax}
