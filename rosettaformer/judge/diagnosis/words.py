"""Words that sentences of diagnosis share."""

from collections.abc import Sequence

from .altered import Combination

SHOWN = 4  # names that are listed


def listed(names: Sequence[str], shown: int = SHOWN, last: str = " and {} more") -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + last.format(more) * (more > 0)


def named(combination: Combination) -> str:
    """The names of alterations that are there together."""
    return " and ".join(one.name for one in combination)


def ids(combination: Combination) -> str:
    """The ids of alterations that are there together."""
    return " and ".join(one.id for one in combination)
