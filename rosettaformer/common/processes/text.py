"""Makes text from untrusted code safe to print."""

import re
from typing import Any

# advice of libraries to let a file run code
_UNSAFE = re.compile(
    "weights_only|trust_remote_code|allow_pickle|safe_mode|enable_unsafe_deserialization|add_safe_globals|trust the source"
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n+")
MOST = 4000  # most characters of a printed text
MESSAGE = 3500  # most characters of an error's message; leaves room for the text around it
# colors and other terminal commands: CSI sequences, and complete OSC sequences
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def without_codes(text: str) -> str:
    """Removes terminal color codes."""
    return _TERMINAL.sub("", text)


def printable(text: str, most: int = MOST, lines: bool = False) -> str:
    """Returns the text on one line, without terminal codes.

    Other characters that a terminal interprets become Python escapes: control characters, lone
    surrogates, direction marks (\\x07, \\ud800, \\u202e). Long texts are cut, and the number of
    dropped characters is appended. lines: keeps line feeds and spaces.
    """
    first = without_codes(text[:most])
    kept = first if lines else " ".join(first.split())
    shown = "".join(letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode() for letter in kept)
    return f"{shown} ... ({len(text) - most} more characters)" if len(text) > most else shown


def words(error: BaseException) -> str:
    """Returns the error's type and message."""
    return ": ".join(filter(None, [plain(type(error).__name__), message(error)]))


def message(error: BaseException) -> str:
    """Returns the start of the error's message. Foreign code computes it, so it may fail."""
    try:
        text = without_codes(plain(str(error)))
    except BaseException:
        return "its message cannot be shown, since its str() raises"
    text = without_advice(text)
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} ... ({len(text) - MESSAGE} more characters)"


def without_advice(text: str) -> str:
    """Removes sentences that advise to let a file run code."""
    if not _UNSAFE.search(text):
        return text
    return " ".join(sentence for sentence in _SENTENCE.split(text) if not _UNSAFE.search(sentence)).strip()


def innermost(error: BaseException) -> BaseException:
    """Unwraps an error that a framework, such as Keras, wrapped in a longer one of its class."""
    inner = error.__context__
    return innermost(inner) if type(inner) is type(error) and message(inner) in message(error) else error


def plain(text: Any) -> str:
    """Converts an instance of a str subclass to a plain str."""
    return str.encode(text, "utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
