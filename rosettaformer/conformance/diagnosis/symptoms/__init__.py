"""Symptoms: what a port's output is in terms of the reference and the inputs, where it is no change that has a name."""

from .describe import describe, only_at
from .symptom import Symptom

__all__ = ["Symptom", "describe", "only_at"]
