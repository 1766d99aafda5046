"""Lengths that graphs are compiled for."""

__all__ = ["bucket"]

SHORTEST, LONGEST = 16, 64


def bucket(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 192, ... that is not shorter, so that few lengths serve all."""
    if length > LONGEST:
        return -(-length // LONGEST) * LONGEST
    return max(SHORTEST, 1 << (length - 1).bit_length())
