"""Lines of text as files hold them: UTF-8, ended by a line feed, and of a bounded length."""

import re
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["damage", "decode", "read"]

LONGEST, ENDLESS = 100_000, 1 << 26  # bytes of a line; no sentence is longer than the first, no text has lines like the second
_CONTROL = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\ufffd]")


def read(file: BinaryIO) -> Iterator[bytes]:
    """The lines, each with its end; of one that is too long the beginning, which `decode` refuses.

    Raises ValueError where a line does not end at all.
    """
    while line := file.readline(LONGEST + 1):
        yield line
        passed = 0
        while len(line) > LONGEST and not line.endswith(b"\n"):
            line = file.readline(LONGEST + 1)
            if (passed := passed + len(line)) > ENDLESS:
                raise ValueError(f"{file.name} must be lines of text; got one of more than {ENDLESS} bytes")


def decode(raw: bytes) -> tuple[str, str]:
    """The text of a line without its end and without a byte order mark; and what is wrong with it as a line, or nothing."""
    if len(raw) > LONGEST:
        return "", f"must be at most {LONGEST} bytes long; it is longer"
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        byte, place = raw[error.start], error.start + 1
        return "", f"must be UTF-8; got the byte 0x{byte:02x} at place {place}{_guess(raw)}"


def damage(text: str) -> str:
    """Why a text is no line of a corpus, or nothing."""
    if not text.strip():
        return "must not be empty"
    found = _CONTROL.search(text)
    return f"must be text; got the character U+{ord(found[0]):04X}" if found else ""


def _guess(raw: bytes) -> str:
    return " (UTF-16?)" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
