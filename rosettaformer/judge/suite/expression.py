"""Selects cases by an expression like pytest's -k: words, `and`, `or`, `not` and parentheses."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import nearest

from ..case import Case

Thing = TypeVar("Thing")

PRECEDENCE = {"or": 1, "and": 2, "not": 3}


def choose(cases: Iterable[Case], expression: str) -> list[Case]:
    """Returns the cases whose `component/name-dtype` matches. Raises as `matching` does."""
    pairs = [(case, dtype) for case in cases for dtype in case.dtypes]
    chosen: dict[tuple[str, Mesh | None], Case] = {}
    for case, dtype in matching(pairs, lambda pair: f"{pair[0].id}-{pair[1]}", expression):
        before = chosen.get((case.id, case.mesh))
        chosen[case.id, case.mesh] = dataclasses.replace(case, dtypes=(*(before.dtypes if before else ()), dtype))
    return [*chosen.values()]


def matching(things: Iterable[Thing], name: Callable[[Thing], str], expression: str) -> list[Thing]:
    """Returns the items whose names match. A word matches any part of a name, ignoring case.

    Raises ValueError if the expression is invalid or nothing matches.
    """
    things, true = list(things), compiled(expression)
    if chosen := [thing for thing in things if true(name(thing))]:
        return chosen
    names = [name(thing).lower() for thing in things]
    parts = sorted({part for text in names for part in re.split(r"[/\s-]", text)})
    operands = [word for word in _words(expression) if word not in (*PRECEDENCE, "(", ")")]
    lost = [word for word in operands if not any(word.lower() in text for text in names)]
    raise ValueError(f"-k {expression!r} matches nothing{nearest(lost[0], parts) if lost else ''}")


def compiled(expression: str) -> Callable[[str], bool]:
    """Returns whether a name matches, as a function. Raises ValueError if invalid."""
    postfix = _postfix(_words(expression), expression)

    def true(name: str) -> bool:
        stack: list[bool] = []
        for word in postfix:
            if word == "not":
                stack.append(not stack.pop())
            elif word in PRECEDENCE:
                last, first = stack.pop(), stack.pop()
                stack.append(first and last if word == "and" else first or last)
            else:
                stack.append(word.lower() in name.lower())
        return stack.pop()

    return true


def _words(expression: str) -> list[str]:
    return re.findall(r"[()]|[^\s()]+", expression)


def _postfix(words: Iterable[str], expression: str) -> list[str]:
    """Returns the words in postfix order."""
    output: list[str] = []
    waiting: list[str] = []
    operand = False  # whether the previous word ended an operand
    for word in words:
        if operand == (word not in ("and", "or", ")")):
            raise _malformed(expression, word)
        if word == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                raise _malformed(expression, word)
            waiting.pop()
        elif word == "(" or word == "not":
            waiting.append(word)
        elif word in PRECEDENCE:
            while waiting and PRECEDENCE.get(waiting[-1], 0) >= PRECEDENCE[word]:
                output.append(waiting.pop())
            waiting.append(word)
        else:
            output.append(word)
        operand = word not in (*PRECEDENCE, "(")
    if not operand or "(" in waiting:
        raise _malformed(expression, "its end")
    return output + waiting[::-1]


def _malformed(expression: str, where: str) -> ValueError:
    return ValueError(f"-k must be words joined by and, or, not and parentheses; {expression!r} is invalid at {where!r}")
