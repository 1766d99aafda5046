"""The one guard around everything that explains a comparison and does not decide it."""

from collections.abc import Callable
from typing import Any, TypeVar

from ..common.processes import words

Found = TypeVar("Found")
LONGEST = 200  # characters of an error's text


class Explaining:
    """Runs explanations. One that fails is left out, and the verdict stays.

    left_out: a short note for each explanation that failed.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def __call__(self, what: str, explain: Callable[..., Found], *arguments: Any) -> Found | None:
        """Returns what the explanation gives for the arguments; None if it fails. what: names the explanation in the note."""
        try:
            return explain(*arguments)
        except Exception as error:
            text = f"{what} left out: {' '.join(words(error).split())[:LONGEST]}"
            self.left_out += [text] if text not in self.left_out else []
            return None
