"""Translations that are on the machine already: the message catalogues (.mo) of its programs."""

import gettext
import io
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...checkpoints.reading import read_bytes
from . import messages
from .task import Data, Pair, Task, split

__all__ = ["Catalogues"]

_CONTEXT = "\x04"  # stands between a message's context and the message


@dataclass(frozen=True, kw_only=True)
class Catalogues(Task):
    """English messages and their translation into one language, from every catalogue under the locale folders.

    One of the two languages is en. catalogues: look here instead of in the system's folders. Near-duplicates, by either side, are
    removed before the split. Names of languages, countries and the like (iso_* catalogues) are no sentences and are left out.
    """

    name: ClassVar[str] = "gettext"
    defaults: ClassVar[Mapping[str, Any]] = {"vocabulary": 8000, "warmup": 1000, "dropout": 0.2, "buckets": 8}
    from_language: str = "en"
    to_language: str = "es"
    catalogues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "catalogues", tuple(self.catalogues))  # JSON gives a list
        if (self.from_language == "en") == (self.to_language == "en"):
            raise ValueError(
                f"one of --from and --to must be en, the language of messages; got {self.from_language} and {self.to_language}"
            )

    def data(self) -> Data:
        language = self.to_language if self.from_language == "en" else self.from_language
        folders = [Path(folder) for folder in self.catalogues] or _system_folders()
        files = sorted(file for folder in folders for file in folder.glob(f"{language}/LC_MESSAGES/*.mo") if not _is_list_of_names(file))
        read = [pair for file in files for pair in _read(file)]
        pairs = _distinct([pair for pair in map(messages.clean, read) if messages.usable(pair)])
        if not pairs:
            raise ValueError(_nothing(language, folders, len(files)))
        notes = [f"{len(pairs)} pairs of {len(read)} messages in {len(files)} catalogues ({language})"]
        return split(pairs if self.from_language == "en" else [pair[::-1] for pair in pairs], self.held_out, self.seed, notes)


def _system_folders() -> list[Path]:
    """Where systems and Python keep catalogues."""
    usual = [Path("/usr/share"), Path("/usr/local/share"), Path.home() / ".local/share", Path(sys.base_prefix) / "share"]
    folders = [base / name for base in usual for name in ("locale", "locale-langpack")]
    return list({folder.resolve(): folder for folder in folders if folder.is_dir()}.values())


def _is_list_of_names(file: Path) -> bool:
    return file.name.startswith("iso_")


def _read(file: Path) -> Iterator[Pair]:
    """Every message and its translation; of plural forms the singular, where the language tells them apart. A damaged file has none."""
    try:
        # the standard library parses a catalogue and offers no way to list it
        catalogue = vars(gettext.GNUTranslations(io.BytesIO(_sound(read_bytes(file)))))["_catalog"]
    except (OSError, ValueError, LookupError, struct.error, TypeError):
        return
    for message, translation in catalogue.items():
        if isinstance(message, tuple):
            text, form = message
            if form or (text, 1) not in catalogue:
                continue
            message = text
        if message and translation:  # the empty message is the header
            yield message.rpartition(_CONTEXT)[2], translation


def _sound(content: bytes) -> bytes:
    """The content of a catalogue. Raises ValueError where its messages together are longer than it is: each would be copied."""
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    count, *starts = struct.unpack_from(order + "III", content, 8)
    tables = [content[start : start + 8 * count] for start in starts]
    if sum(struct.unpack_from(order + "I", table, place)[0] for table in tables for place in range(0, 8 * count, 8)) > len(content):
        raise ValueError("the messages overlap")
    return content


def _distinct(pairs: list[Pair]) -> list[Pair]:
    """The pairs of which neither side is a near-duplicate of an earlier one's."""
    seen: tuple[set[str], set[str]] = set(), set()
    kept = []
    for pair in pairs:
        keys = [messages.key(text) for text in pair]
        if not any(key in known for key, known in zip(keys, seen, strict=True)):
            kept.append(pair)
        for key, known in zip(keys, seen, strict=True):
            known.add(key)
    return kept


def _nothing(language: str, folders: list[Path], files: int) -> str:
    looked = ", ".join(map(str, folders)) or "no folder that exists"
    found = f"{files} catalogues without a usable message" if files else "no catalogue"
    return (
        f"the task gettext found {found} of {language!r}; it looked for {language}/LC_MESSAGES/*.mo in {looked}. Systems without "
        f"translations lack them: install a language pack (Debian, Ubuntu: apt install language-pack-{language} or any translated "
        "program, outside a container that excludes /usr/share/locale), or name a folder with --catalogues"
    )
