"""Error messages for unknown names, with the nearest known name."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

__all__ = ["LONGEST_NAME", "Nearest", "known", "nearest", "unknown"]

COMPARED = 4000  # candidates compared letter by letter, which is slow
LONGEST = 200  # longest name compared, in characters
DEEPEST = 20  # most parts of a dotted name
LONGEST_NAME = 100  # characters of a name or value shown in a message
SHOWN = 20  # unknown names listed
SHORTEST = 3  # shortest name searched for within candidates


def known(
    what: str, names: Iterable[str], words: Iterable[str], others: str = ""
) -> tuple[str, ...]:
    """Returns the names if each is one of the words.

    what: the kind of name, such as "dtype". others: alternatives, in words. Raises ValueError that
    lists the words, and every other name with the word nearest to it.
    """
    words, names = list(words), tuple(names)
    if wrong := [name for name in names if name not in words]:
        came = ", ".join(f"{name!r}{nearest(str(name), words)}" for name in wrong)
        wanted = f"{', '.join(words)}{others and f', {others}'}"
        raise ValueError(f"{what} must be one of {wanted}; got {came}")
    return names


def unknown(what: str, names: Iterable[str], words: Collection[str]) -> list[str]:
    """Returns one problem for each unknown name, up to a limit, and how many more there are."""
    if not (wrong := [name for name in names if name not in words]):
        return []
    like = Nearest(words)
    problems = [
        f"unknown {what} {name!r:.{LONGEST_NAME}}{like.to(str(name))}" for name in wrong[:SHOWN]
    ]
    return problems + [f"and {len(wrong) - SHOWN} more"] * (len(wrong) > SHOWN)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns the most similar candidate as a suffix for a message; empty if none is similar."""
    return Nearest(candidates).to(name)


class Nearest:
    """Finds the most similar of many candidates, for many names.

    A candidate that differs by a prefix ending in a dot wins; otherwise the one with the most
    similar letters, or the first that contains the name. few: compare letters, which is slow; only
    the first `COMPARED` candidates are compared.
    """

    def __init__(self, candidates: Iterable[str], few: bool = True) -> None:
        self._names = dict.fromkeys(candidates)
        self._by_end = {end: name for name in reversed(self._names) for end in _ends(name)}
        compared = (name for name in islice(self._names, COMPARED) if len(name) <= LONGEST)
        self._letters = {name.lower(): name for name in compared} if few else {}

    def to(self, name: str) -> str:
        """Returns the candidate nearest to the name, as a suffix for a message."""
        found = [end for end in _ends(name) if end in self._names][:1]
        if name in self._by_end:
            found = [self._by_end[name]]
        if not found and len(name) <= LONGEST:
            letters = name.lower()
            alike = difflib.get_close_matches(letters, self._letters, n=1)
            within = [other for other in self._letters if letters in other]
            if len(name) >= SHORTEST:
                alike += within[:1]
            found = [self._letters[match] for match in alike[:1]]
        return f" (nearest: {found[0]})" if found else ""


def _ends(name: str) -> Iterator[str]:
    """Yields `a.b.c`, `b.c` and `c` for `a.b.c`; names of more than `DEEPEST` parts only whole."""
    parts = name.split(".", DEEPEST)
    yield from (
        ".".join(parts[start:]) for start in range(len(parts) if len(parts) <= DEEPEST else 1)
    )
