"""Unknown words: the message that refuses one names the nearest that is known."""

import difflib
from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["LONGEST_NAME", "known", "nearest", "refuse_unknown", "unknown"]

COMPARED = 4000  # so many candidates are compared letter by letter, which is slow
LONGEST = 200  # and words up to so many characters
LONGEST_NAME = 100  # characters of a name or a value that a message shows
SHOWN = 20  # so many unknown names are listed
SHORTEST = 3  # a name of so many characters is looked for within candidates


def known(what: str, names: Iterable[str], words: Iterable[str], others: str = "") -> tuple[str, ...]:
    """The names, each of which must be one of the words.

    what: what a name is, such as "dtype". others: what else would do, in words. Raises ValueError that lists the words, every name that
    is none of them, and the word nearest to it.
    """
    words, names = list(words), tuple(names)
    if wrong := [name for name in names if name not in words]:
        came = ", ".join(f"{name!r}{nearest(str(name), words)}" for name in wrong)
        raise ValueError(f"{what} must be one of {', '.join(words)}{others and f', {others}'}; got {came}")
    return names


def unknown(what: str, names: Iterable[str], words: Collection[str]) -> list[str]:
    """One problem for each of the first names that are none of the words, and how many more there are."""
    wrong = [name for name in names if name not in words]
    problems = [f"unknown {what} {name!r:.{LONGEST_NAME}}{nearest(str(name), words)}" for name in wrong[:SHOWN]]
    return problems + [f"and {len(wrong) - SHOWN} more"] * (len(wrong) > SHOWN)


def refuse_unknown(what: str, names: Iterable[str], words: Collection[str]) -> None:
    """Raises ValueError naming what `unknown` finds."""
    if problems := unknown(what, names, words):
        raise ValueError("; ".join(problems))


def nearest(name: str, candidates: Iterable[str], few: bool = True) -> str:
    """The most similar candidate, as an addition to a message; nothing where none is similar.

    That is one which differs by a prefix that ends in a dot, which is found fast; otherwise the one whose letters are most alike, or the
    first that contains the name. few: whether letters are compared at all; of many candidates only the first `COMPARED` are.
    """
    candidates = list(candidates)
    found = [other for other in candidates if f".{other}".endswith(f".{name}") or f".{name}".endswith(f".{other}")][:1]
    if few and not found and len(name) <= LONGEST:
        letters = {other.lower(): other for other in islice(candidates, COMPARED) if len(other) <= LONGEST}
        alike = difflib.get_close_matches(name.lower(), letters, n=1)
        within = [other for other in letters if len(name) >= SHORTEST and name.lower() in other]
        found = [letters[match] for match in (alike + within)[:1]]
    return f" (nearest: {found[0]})" if found else ""
