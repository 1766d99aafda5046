"""The Transformer in lists of Python numbers."""
