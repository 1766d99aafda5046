"""Choosing cases by an expression, as pytest's -k: words joined by `and`, `or`, `not` and parentheses."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from reference_numpy.suggestions import nearest

from .case import Case

__all__ = ["choose", "compiled"]

PRECEDENCE = {"or": 1, "and": 2, "not": 3}


def choose(cases: Sequence[Case], expression: str) -> list[Case]:
    """The cases that the expression is true of, each with the dtypes in which it is: a word is true where it is a part of
    `component/case-dtype`, in whatever case. Raises ValueError where it is no expression, and where nothing is chosen."""
    true = compiled(expression)
    named = [(case, tuple(dtype for dtype in case.dtypes if true(f"{case.id}-{dtype}"))) for case in cases]
    chosen = [dataclasses.replace(case, dtypes=dtypes) for case, dtypes in named if dtypes]
    if not chosen:
        names = {part for case in cases for part in (case.component, case.name, *case.dtypes)}
        lost = [word for word in _operands(expression) if not any(word.lower() in name for name in names)]
        raise ValueError(f"-k must choose at least one case; {expression!r} chooses none{nearest(lost[0], sorted(names)) if lost else ''}")
    return chosen


def compiled(expression: str) -> Callable[[str], bool]:
    """Whether the expression is true of a name. Raises ValueError on what is no expression."""
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


def _operands(expression: str) -> list[str]:
    return [word for word in _words(expression) if word not in (*PRECEDENCE, "(", ")")]


def _postfix(words: Iterable[str], expression: str) -> list[str]:
    """The words with every operator behind its operands."""
    output: list[str] = []
    waiting: list[str] = []
    operand = False  # whether the word before this one ended an operand
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
    return ValueError(f"-k must be words joined by and, or, not and parentheses; got {expression!r}, which goes wrong at {where!r}")
