"""Relations: what a port's output is in terms of the reference and the inputs, where it is no alteration that has a name."""

from .describe import describe, only_at
from .relation import Relation

__all__ = ["Relation", "describe", "only_at"]
