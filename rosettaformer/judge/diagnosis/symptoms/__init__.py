"""Symptoms: sentences that describe an output that no alteration gives."""

from .answered import Symptom
from .describe import describe, only_at, rounding

__all__ = ["Symptom", "describe", "only_at", "rounding"]
