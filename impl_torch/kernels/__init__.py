"""Attention, projections and gathers of an unpadded run, which the pages call in a line each."""

__all__: list[str] = []
