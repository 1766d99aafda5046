"""Which messages of a program are sentences that a model can learn to translate."""

import re
import unicodedata
from collections import Counter

from .task import Pair

__all__ = ["clean", "key", "usable"]

LONGEST = 200  # characters
LETTERS = 0.6  # of what is not space
RATIO = 2.0  # of the lengths, each with SLACK added, since short words differ more
SLACK = 8

_PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+ #0']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGaAcspn%]"  # C
    r"|%\(\w+\)[-#0 +]*\d*\.?\d*[a-z]|\$\{\w+\}|\$\w+|\{[^{}]*\}|%\d"  # Python, shell, braces, Qt
)
_MARKUP = re.compile(r"</?[a-zA-Z!?][^>]*>|&#?\w+;|\\[a-zA-Z]|https?://|www\.|--?\w+=|(?:^|\s)--?\w|\s{3}")
_ACCELERATOR = re.compile(r"[_&](?=[^\W\d_])")
_APPENDED = re.compile(r"\s*\([_&]\w\)")  # as languages without these letters write it


def clean(pair: Pair) -> Pair:
    """The pair without outer space and without accelerators, the marks of a menu's keyboard letters, which only pairs have."""
    texts = [_APPENDED.sub("", text.strip()) for text in pair]
    for mark in "_&":
        if all(text.count(mark) <= 1 for text in texts) and mark in texts[0]:
            texts = [_ACCELERATOR.sub("", text) if mark in text else text for text in texts]
    return texts[0], texts[1]


def usable(pair: Pair) -> bool:
    """Whether both sides are one short line of words without markup, with the same placeholders, and not the same."""
    source, target = pair
    shares = [_share_of_letters(_PLACEHOLDER.sub("", text)) for text in pair]
    lengths = sorted((len(source) + SLACK, len(target) + SLACK))
    return (
        all(0 < len(text) <= LONGEST and text.isprintable() and not _MARKUP.search(text) for text in pair)
        and min(shares) >= LETTERS
        and lengths[1] <= RATIO * lengths[0]
        and _placeholders(source) == _placeholders(target)
        and key(source) != key(target)
    )


def key(text: str) -> str:
    """What near-duplicates share: the text without case, accents of compatibility, punctuation and accelerators, its digits as 0."""
    plain = unicodedata.normalize("NFKC", _APPENDED.sub("", text)).casefold()
    words = re.sub(r"[_&]", "", plain)
    return " ".join(re.sub(r"[^\w\s]", " ", re.sub(r"\d+", "0", words)).split())


def _placeholders(text: str) -> Counter[str]:
    """How often each placeholder stands in a text; their order may differ where they are numbered."""
    return Counter(re.sub(r"\d+\$", "", found) for found in _PLACEHOLDER.findall(text))


def _share_of_letters(text: str) -> float:
    marks = [character for character in text if not character.isspace()]
    return sum(unicodedata.category(character)[0] in "LM" for character in marks) / max(len(marks), 1)
