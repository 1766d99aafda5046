"""The Transformer in lists of Python's own numbers."""
