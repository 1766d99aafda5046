"""What is there for speed: the plain files call it in one line each."""

__all__ = []
