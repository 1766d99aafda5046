"""Programs: compiled models, snapshots for inference, searches and unpadded runs. They call the
pages.
"""

__all__: list[str] = []
