"""The guard around explanations, which never decide a comparison."""

from collections.abc import Callable
from typing import Any, TypeVar

from ..common.processes import words

Found = TypeVar("Found")
LONGEST = 200  # maximum length of an error, in characters


class Explaining:
    """Runs explanations; one that fails is left out and the verdict stays.

    left_out: a note for each explanation that failed.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def __call__(self, what: str, explain: Callable[..., Found], *arguments: Any) -> Found | None:
        """Returns `explain(*arguments)`, or None if it fails.

        what: name of the explanation, for the note.
        """
        try:
            return explain(*arguments)
        except Exception as error:
            text = f"{what} left out: {' '.join(words(error).split())[:LONGEST]}"
            self.left_out += [text] if text not in self.left_out else []
            return None
