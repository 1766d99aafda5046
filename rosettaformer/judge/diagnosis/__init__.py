"""Diagnosis: what is wrong with a port, by name."""

from .examination import diagnose
from .findings import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
