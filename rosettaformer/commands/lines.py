"""Reads lines and processes them in batches; a bad line fails alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import click

from ..common.reading import read_texts

SHOWN = 5  # problems listed in a message


class Row(NamedTuple):
    """One line and its result. number: counts from 1. answer: None if there is a problem."""

    number: int
    item: Any
    answer: Any
    problem: str


def batches(option: str, texts: Sequence[str], file: BinaryIO | None, size: int) -> Iterable[list[tuple[str, str]]]:
    """Returns batches of (text, problem) from an option, or else from a file or standard input.

    Raises ValueError if both the option and a file are given.
    """
    if texts and file:
        raise ValueError(f"--{option} and FILE ({file.name}) cannot be used together")
    if not texts:
        return read_texts(file or click.open_file("-", "rb"), size)  # type: ignore[arg-type]
    return ([(text, "") for text in texts[start : start + size]] for start in range(0, len(texts), size))


class Lines:
    """Counts lines, or prompts, and collects the problems of those that failed."""

    def __init__(self, what: str = "line") -> None:
        self._what, self.count, self._problems = what, 0, list[str]()

    def answered(
        self, lines: Sequence[tuple[str, str]], run: Callable[[list[Any]], Iterable[Any]], parse: Callable[[str], Any] = str
    ) -> Iterator[Row]:
        """Yields a row for each line, running the whole batch at once.

        If `run` raises ValueError, it is called again for each line alone. lines: texts and their
        problems. parse: converts a text to an item of `run`, or raises ValueError.
        """
        parsed = [_tried(parse, text) if not problem else (text, problem) for text, problem in lines]
        answers = iter(_answers(run, [item for item, problem in parsed if not problem]))
        for (text, _), (item, problem) in zip(lines, parsed, strict=True):
            answer, problem = (None, problem) if problem else next(answers)
            self.add(problem)
            yield Row(self.count, text if item is None else item, answer, problem)

    def add(self, problem: str = "") -> None:
        """Counts a line and its problem."""
        self.count += 1
        if problem:
            self._problems.append(f"{self._what} {self.count}: {problem}")

    def end(self) -> None:
        """Raises ValueError with the first problems, if there are any."""
        if bad := len(self._problems):
            said = [*self._problems[:SHOWN], *([f"and {bad - SHOWN} more"] if bad > SHOWN else [])]
            between = " " if bad == 1 else "\n  "
            raise ValueError(between.join([f"{bad} of {self.count} {self._what}s failed:", *said]))


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
