"""Hypotheses: how a port may differ from the reference."""

from .hypotheses import Hypotheses, candidates

__all__ = ["Hypotheses", "candidates"]
