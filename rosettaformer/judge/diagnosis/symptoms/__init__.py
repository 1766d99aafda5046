"""Symptoms: sentences that say what a port's output is in terms of the reference and the inputs, if no alteration gives it."""

from .answered import Symptom
from .describe import describe, only_at, rounding

__all__ = ["Symptom", "describe", "only_at", "rounding"]
