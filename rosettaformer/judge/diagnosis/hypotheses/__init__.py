"""Hypotheses: what a port may have done otherwise than the reference."""

from .hypotheses import Hypotheses, candidates

__all__ = ["Hypotheses", "candidates"]
