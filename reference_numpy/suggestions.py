"""Unknown words: the message that refuses one names the nearest that is known."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

__all__ = ["LONGEST_NAME", "Nearest", "known", "nearest", "unknown"]

COMPARED = 4000  # candidates that are compared letter by letter, which is slow
LONGEST = 200  # characters of a word that is compared
DEEPEST = 20  # parts of a name
LONGEST_NAME = 100  # characters of a name or a value that a message shows
SHOWN = 20  # unknown names that are listed
SHORTEST = 3  # characters of a name that is looked for within candidates


def known(
    what: str, names: Iterable[str], words: Iterable[str], others: str = ""
) -> tuple[str, ...]:
    """The names, each of which must be one of the words.

    what: what a name is, such as "dtype". others: what else would do, in words. Raises ValueError
    that lists the words, every name that is none of them, and the word nearest to it.
    """
    words, names = list(words), tuple(names)
    if wrong := [name for name in names if name not in words]:
        came = ", ".join(f"{name!r}{nearest(str(name), words)}" for name in wrong)
        wanted = f"{', '.join(words)}{others and f', {others}'}"
        raise ValueError(f"{what} must be one of {wanted}; got {came}")
    return names


def unknown(what: str, names: Iterable[str], words: Collection[str]) -> list[str]:
    """A problem for each of the first names that are none of the words, and how many follow."""
    if not (wrong := [name for name in names if name not in words]):
        return []
    like = Nearest(words)
    problems = [
        f"unknown {what} {name!r:.{LONGEST_NAME}}{like.to(str(name))}" for name in wrong[:SHOWN]
    ]
    return problems + [f"and {len(wrong) - SHOWN} more"] * (len(wrong) > SHOWN)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The most similar candidate, as an addition to a message; nothing where none is similar."""
    return Nearest(candidates).to(name)


class Nearest:
    """Candidates, of which the most similar to each of many names is found.

    That is one which differs by a prefix that ends in a dot; otherwise the one whose letters are
    most alike, or the first that contains the name. few: whether letters are compared at all, which
    is slow; of many candidates only the first `COMPARED` are.
    """

    def __init__(self, candidates: Iterable[str], few: bool = True) -> None:
        self._names = dict.fromkeys(candidates)
        self._by_end = {end: name for name in reversed(self._names) for end in _ends(name)}
        compared = (name for name in islice(self._names, COMPARED) if len(name) <= LONGEST)
        self._letters = {name.lower(): name for name in compared} if few else {}

    def to(self, name: str) -> str:
        """The one nearest to the name, as an addition to a message."""
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
    """`a.b.c`, `b.c` and `c` of `a.b.c`; of a name with more than `DEEPEST` parts only itself."""
    parts = name.split(".", DEEPEST)
    yield from (
        ".".join(parts[start:]) for start in range(len(parts) if len(parts) <= DEEPEST else 1)
    )
