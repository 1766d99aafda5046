"""Compiled models, snapshots for inference, searches and unpadded runs, which call the pages."""

__all__: list[str] = []
