"""Lines of text as files hold them: UTF-8, ended by a line feed."""

import unicodedata

__all__ = ["damage", "decode"]


def decode(raw: bytes) -> tuple[str, str]:
    """The text of a line without its end and without a byte order mark; and what is wrong with its encoding, or nothing."""
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        byte, place = raw[error.start], error.start + 1
        return "", f"must be UTF-8; got the byte 0x{byte:02x} at place {place}{_guess(raw)}"


def damage(text: str) -> str:
    """Why a text is no line of a corpus, or nothing."""
    if not text.strip():
        return "must not be empty"
    for character in text:
        if character == "\ufffd" or (character != "\t" and unicodedata.category(character) == "Cc"):
            return f"must be text; got the character U+{ord(character):04X}"
    return ""


def _guess(raw: bytes) -> str:
    return " (UTF-16?)" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
