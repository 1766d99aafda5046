"""How far a run has come: everything, beside parameters and moments, that the next step depends on."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import schema
from .corpus import BEGINNING, Position

__all__ = ["FIELDS", "Progress"]

FIELDS: schema.Table = {
    "seed": schema.integer(), "steps": schema.integer(1), "position": schema.OBJECT, "best": schema.optional(schema.number()),
    "stale": schema.integer(), "seconds": schema.number(),
}  # fmt: skip
_POSITION = {"epoch": schema.integer(), "batch": schema.integer()}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """steps: done so far; with the seed of the run they are the whole random state. position: of the next batch.

    best: the lowest validation loss so far; stale: validations since. seconds: of training so far, over all calls.
    """

    seed: int
    steps: int = 0
    position: Position = BEGINNING
    best: float | None = None
    stale: int = 0
    seconds: float = 0.0

    def replace(self, **changes: Any) -> "Progress":
        return dataclasses.replace(self, **changes)

    def validated(self, loss: float) -> "Progress":
        """After a validation with that loss."""
        better = loss < (math.inf if self.best is None else self.best)
        return self.replace(best=loss if better else self.best, stale=0 if better else self.stale + 1)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Progress":
        """The progress of `to_dict`'s mapping; raises ValueError listing every field that is missing, unknown or out of range."""
        problems = schema.problems(fields, FIELDS) or schema.problems(fields["position"], _POSITION, "position")
        if problems:
            raise ValueError("\n  ".join(problems))
        return cls(**{**fields, "position": Position(**fields["position"])})
