"""Evidence: whether a port's answers are those of an altered reference, and which alterations give them."""

from .evidence import Answers, Evidence
from .search import Search

__all__ = ["Answers", "Evidence", "Search"]
