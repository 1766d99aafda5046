"""Evidence: whether an altered reference gives a port's outputs, and which alterations do."""

from .evidence import Answers, Evidence
from .search import Search

__all__ = ["Answers", "Evidence", "Search"]
