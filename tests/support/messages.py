"""Checks messages by the values they mention, not by their words."""

import re
from collections.abc import Iterable, Sequence


def naming(values: str) -> str:
    """Returns a pattern for a message that mentions these values in this order: `heads … 0` for "heads must be at least 1; got 0"."""
    return "(?s)" + ".*".join(map(re.escape, values.split(" … ")))


def mentions(message: str, values: str) -> bool:
    """Whether a message mentions these values, in the notation of `naming`."""
    return re.search(naming(values), message) is not None


def each_mentions(messages: Iterable[str], values: Sequence[str]) -> bool:
    """Whether each of the values has its own message, in any order."""
    left = list(messages)
    if len(left) != len(values):
        return False
    for one in sorted(values, key=len, reverse=True):
        found = next((message for message in left if mentions(message, one)), None)
        if found is None:
            return False
        left.remove(found)
    return True
