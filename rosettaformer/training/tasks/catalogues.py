"""Translations that the machine already has: the message catalogues (.mo) of its programs, restricted to sentences."""

import re
import struct
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...reading import read_bytes
from . import Data, Pair, Task, split

LONGEST = 200  # characters
LETTERS = 0.6  # counted without spaces
RATIO = 2.0  # the largest ratio of two lengths, each with SLACK added, since short words differ more
SLACK = 8

_PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+ #0']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGaAcspn%]"  # C
    r"|%\(\w+\)[-#0 +]*\d*\.?\d*[a-z]|\$\{\w+\}|\$\w+|\{[^{}]*\}|%\d"  # Python, shell, braces, Qt
)
_MARKUP = re.compile(r"</?[a-zA-Z!?][^>]*>|&#?\w+;|\\[a-zA-Z]|https?://|www\.|--?\w+=|(?:^|\s)--?\w|\s{3}")
_ACCELERATOR = re.compile(r"[_&](?=[^\W\d_])")
_APPENDED = re.compile(r"\s*\([_&]\w\)")  # as languages without these letters write it


@dataclass(frozen=True, kw_only=True)
class Catalogues(Task):
    """English messages and their translation into one language, from every catalogue under the locale folders.

    One of the two languages is en. catalogues: search here instead of in the system's folders. Near-duplicates, by either side, are removed
    before the split. Names of languages, countries and the like (iso_* catalogues) are left out: they are no sentences.
    """

    name: ClassVar[str] = "gettext"
    defaults: ClassVar[Mapping[str, Any]] = {"vocabulary": 8000, "warmup": 1000, "dropout": 0.2, "buckets": 8}
    from_language: str = "en"
    to_language: str = "es"
    catalogues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "catalogues", tuple(self.catalogues))  # JSON has lists only
        if (self.from_language == "en") == (self.to_language == "en"):
            raise ValueError(
                f"one of --from and --to must be en, the language of messages; got {self.from_language} and {self.to_language}"
            )

    def data(self) -> Data:
        language = self.to_language if self.from_language == "en" else self.from_language
        folders = [Path(folder) for folder in self.catalogues] or _system_folders()
        files = sorted(file for folder in folders for file in folder.glob(f"{language}/LC_MESSAGES/*.mo"))
        files = [file for file in files if not file.name.startswith("iso_")]  # lists of names
        read = [pair for file in files for pair in _read(file)]
        pairs = _distinct([pair for pair in map(clean, read) if usable(pair)])
        if not pairs:
            raise ValueError(_nothing(language, folders, len(files)))
        notes = [f"{len(pairs)} pairs of {len(read)} messages in {len(files)} catalogues ({language})"]
        return split(pairs if self.from_language == "en" else [pair[::-1] for pair in pairs], self.held_out, self.seed, notes)


def _system_folders() -> list[Path]:
    """Returns the folders where systems and Python keep catalogues."""
    usual = [Path("/usr/share"), Path("/usr/local/share"), Path.home() / ".local/share", Path(sys.base_prefix) / "share"]
    folders = [base / name for base in usual for name in ("locale", "locale-langpack")]
    return list({folder.resolve(): folder for folder in folders if folder.is_dir()}.values())


def _read(file: Path) -> Iterator[Pair]:
    """Returns every message and its translation; of plural forms the singular, if there is one. A damaged file has none."""
    import polib

    try:
        catalogue = polib.mofile(_sound(read_bytes(file)))
    except (OSError, ValueError, LookupError, struct.error):
        return
    for entry in catalogue:
        translation = entry.msgstr_plural[0] if 1 in entry.msgstr_plural else entry.msgstr
        if entry.msgid and translation:
            yield entry.msgid, translation


def _sound(content: bytes) -> bytes:
    """Returns the content of a catalogue. Raises ValueError if its messages together are longer than the file: each would be copied."""
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    count, *starts = struct.unpack_from(order + "III", content, 8)
    tables = [content[start : start + 8 * count] for start in starts]
    if sum(struct.unpack_from(order + "I", table, place)[0] for table in tables for place in range(0, 8 * count, 8)) > len(content):
        raise ValueError("the messages overlap")
    return content


def _distinct(pairs: list[Pair]) -> list[Pair]:
    """Yields the pairs neither side of which is a near-duplicate of an earlier pair's."""
    seen: set[tuple[int, str]] = set()  # (side, key)
    kept = []
    for pair in pairs:
        keys = {*enumerate(map(key, pair))}
        if seen.isdisjoint(keys):
            kept.append(pair)
        seen |= keys
    return kept


def _nothing(language: str, folders: list[Path], files: int) -> str:
    looked = ", ".join(map(str, folders)) or "no folder that exists"
    found = f"{files} catalogues without a usable message" if files else "no catalogue"
    return (
        f"the task gettext found {found} of {language!r}; it looked for {language}/LC_MESSAGES/*.mo in {looked}. Systems without "
        f"translations lack them: install a language pack (Debian, Ubuntu: apt install language-pack-{language} or any translated "
        "program, outside a container that excludes /usr/share/locale), or name a folder with --catalogues"
    )


def clean(pair: Pair) -> Pair:
    """Returns the pair without outer space and without accelerators, the marks of keyboard letters in menus."""
    texts = [_APPENDED.sub("", text.strip()) for text in pair]
    for mark in "_&":
        if all(text.count(mark) <= 1 for text in texts) and mark in texts[0]:
            texts = [_ACCELERATOR.sub("", text) if mark in text else text for text in texts]
    return texts[0], texts[1]


def usable(pair: Pair) -> bool:
    """Whether both sides are one short line of words without markup, with the same placeholders, and not equal."""
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
    """Returns what near-duplicates share: the text without case, compatibility accents, punctuation and accelerators, its digits as 0."""
    plain = unicodedata.normalize("NFKC", _APPENDED.sub("", text)).casefold()
    words = re.sub(r"[_&]", "", plain)
    return " ".join(re.sub(r"[^\w\s]", " ", re.sub(r"\d+", "0", words)).split())


def _placeholders(text: str) -> Counter[str]:
    """Counts each placeholder of a text; numbered placeholders may differ in order."""
    return Counter(re.sub(r"\d+\$", "", found) for found in _PLACEHOLDER.findall(text))


def _share_of_letters(text: str) -> float:
    marks = [character for character in text if not character.isspace()]
    return sum(unicodedata.category(character)[0] in "LM" for character in marks) / max(len(marks), 1)
