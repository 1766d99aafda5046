"""Whole programs that call the pages: compiled models, snapshots, searches, unpadding, meshes."""

__all__: list[str] = []
