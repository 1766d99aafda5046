"""Reads lines and answers them in batches; a bad line costs only its own row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import click

from ..common.reading import read_texts

SHOWN = 5  # problems that a message lists


class Row(NamedTuple):
    """number: from 1. item: what was read. answer: None if there is a problem, which says why."""

    number: int
    item: Any
    answer: Any
    problem: str


def batches(option: str, texts: Sequence[str], file: BinaryIO | None, size: int) -> Iterable[list[tuple[str, str]]]:
    """Returns the texts of an option, or the lines of the file or of standard input, with their problems, `size` at a time.

    Raises ValueError if both are given.
    """
    if texts and file:
        raise ValueError(f"{option}s must be --{option}, or the lines of a file; got both (FILE={file.name})")
    if not texts:
        return read_texts(file or click.open_file("-", "rb"), size)  # type: ignore[arg-type]
    return ([(text, "") for text in texts[start : start + size]] for start in range(0, len(texts), size))


class Lines:
    """Counts the lines, or prompts, that were read, and collects the problems of those without an answer."""

    def __init__(self, what: str = "line") -> None:
        self._what, self.count, self._problems = what, 0, list[str]()

    def answered(
        self, lines: Sequence[tuple[str, str]], run: Callable[[list[Any]], Iterable[Any]], parse: Callable[[str], Any] = str
    ) -> Iterator[Row]:
        """Yields a row for every line with the result of `run`, called for all of them together; if it raises ValueError, for each singly.

        lines: texts and their problems. parse: converts a text into an argument of `run`; raises ValueError if it cannot.
        """
        parsed = [_tried(parse, text) if not problem else (text, problem) for text, problem in lines]
        answers = iter(_answers(run, [item for item, problem in parsed if not problem]))
        for (text, _), (item, problem) in zip(lines, parsed, strict=True):
            answer, problem = (None, problem) if problem else next(answers)
            self.add(problem)
            yield Row(self.count, text if item is None else item, answer, problem)

    def add(self, problem: str = "") -> None:
        """Adds a line."""
        self.count += 1
        if problem:
            self._problems.append(f"{self._what} {self.count}: {problem}")

    def end(self) -> None:
        """Raises ValueError if a line had a problem, naming the first ones."""
        if bad := len(self._problems):
            said = [*self._problems[:SHOWN], *([f"and {bad - SHOWN} more"] if bad > SHOWN else [])]
            between, have = (" ", "has") if bad == 1 else ("\n  ", "have")
            raise ValueError(between.join([f"{bad} of {self.count} {self._what}s {have} no answer:", *said]))


def _tried(action: Callable[[Any], Any], item: Any) -> tuple[Any, str]:
    try:
        return action(item), ""
    except ValueError as error:
        return None, str(error)


def _answers(run: Callable[[list[Any]], Iterable[Any]], items: list[Any]) -> list[tuple[Any, str]]:
    together, problem = _tried(lambda given: [*run(given)] if given else [], items)
    if not problem:
        return [(answer, "") for answer in together]
    return [(None, problem)] if len(items) == 1 else [pair for item in items for pair in _answers(run, [item])]
