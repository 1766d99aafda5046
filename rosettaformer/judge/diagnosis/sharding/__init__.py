"""Explains wrong outputs on a mesh: the known bug that gives them, or what they show."""

from .facts import Reply
from .fault_search import Said, said

__all__ = ["Reply", "Said", "said"]
