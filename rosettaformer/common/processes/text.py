"""Makes text from foreign code safe to show."""

import re
from typing import Any

# what a library advises that refuses to run code of a file
_UNSAFE = re.compile(
    "weights_only|trust_remote_code|allow_pickle|safe_mode|enable_unsafe_deserialization|add_safe_globals|trust the source"
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n+")
MOST = 4000  # characters of a text that are shown
MESSAGE = 3500  # characters of an error's message; leaves room for the text around it
# colours and other commands to a terminal: CSI sequences, and OSC sequences up to their end
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def without_codes(text: str) -> str:
    """Returns the text without the codes that colour it on a terminal."""
    return _TERMINAL.sub("", text)


def printable(text: str, most: int = MOST, lines: bool = False) -> str:
    """Returns the text on one line, without terminal codes.

    Everything else that a terminal would obey becomes a Python escape: control characters, lone
    surrogates, marks of direction (\\x07, \\ud800, \\u202e). A long text is cut, and the number of
    characters left out is given.

    lines: keep line feeds and spaces.
    """
    first = without_codes(text[:most])
    kept = first if lines else " ".join(first.split())
    shown = "".join(letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode() for letter in kept)
    return f"{shown} ... ({len(text) - most} more characters)" if len(text) > most else shown


def words(error: BaseException) -> str:
    """Returns the error's type, and its message if it has one."""
    return ": ".join(filter(None, [plain(type(error).__name__), message(error)]))


def message(error: BaseException) -> str:
    """Returns the beginning of the error's message; foreign code computes it and may fail."""
    try:
        text = without_codes(plain(str(error)))
    except BaseException:
        return "its message cannot be shown, since its str() raises"
    text = without_advice(text)
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} ... ({len(text) - MESSAGE} more characters)"


def without_advice(text: str) -> str:
    """Returns the text without the sentences that advise to let a file run code."""
    if not _UNSAFE.search(text):
        return text
    return " ".join(sentence for sentence in _SENTENCE.split(text) if not _UNSAFE.search(sentence)).strip()


def innermost(error: BaseException) -> BaseException:
    """Unwraps an error that a framework has put into another one of the same class with a longer message, as Keras does."""
    inner = error.__context__
    return innermost(inner) if type(inner) is type(error) and message(inner) in message(error) else error


def plain(text: Any) -> str:
    """Returns the characters of a str, or of an instance of a subclass of str, as a plain str."""
    return str.encode(text, "utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
