"""Text from foreign code, made safe to show."""

from typing import Any

__all__ = ["innermost", "message", "plain", "printable", "words"]

MOST = 4000  # characters of a text that are shown
MESSAGE = 3500  # characters of an error's message, which leave room for what is said around it


def printable(text: str, most: int = MOST, lines: bool = False) -> str:
    """The text on one line, without what a terminal would obey: control characters, lone surrogates, marks of direction and the like are
    shown as Python escapes them (\\x1b, \\ud800, \\u202e). Of a long text the beginning, and how much is left out.

    lines: its line feeds and spaces stay as they are.
    """
    kept = text[:most] if lines else " ".join(text[:most].split())
    shown = "".join(letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode() for letter in kept)
    return f"{shown} ... ({len(text) - most} more characters)" if len(text) > most else shown


def words(error: BaseException) -> str:
    """The type of the error and its message."""
    return f"{plain(type(error).__name__)}: {message(error)}"


def message(error: BaseException) -> str:
    """The error's message, the beginning of a long one; foreign code writes it, which may fail."""
    try:
        text = plain(str(error))
    except BaseException:
        return "its message cannot be shown, since its str() raises"
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} ... ({len(text) - MESSAGE} more characters)"


def innermost(error: BaseException) -> BaseException:
    """The error that a framework has put into another one of its class, with more around its message, as Keras does."""
    inner = error.__context__
    return innermost(inner) if type(inner) is type(error) and message(inner) in message(error) else error


def plain(text: Any) -> str:
    """The characters of a str, or of an object of a class derived from str, as a str and nothing else."""
    return str.encode(text, "utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
