"""Diagnosis: what is wrong with a port, by name."""

from .examination import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
