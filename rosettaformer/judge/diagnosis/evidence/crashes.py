"""Cases without an answer. A failure equals nothing, another failure neither; the answers alone are searched."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ...case import Case
from ...catalogue import Alteration
from .. import altered
from ..altered import Combination
from ..symptoms.conditions import condition
from .evidence import Evidence

LISTED = 3  # different errors that are listed

Failed = Sequence[tuple[Case, str]]  # the cases that have no answer, and the error of each


def sentence(failed: Failed, answered: Sequence[Case]) -> str:
    """On how many cases the port fails, with which errors, and where."""
    if not answered:
        return f"fails on every case: {_errors(failed)}"
    where = condition([case for case, _ in failed], answered)
    return f"fails on {len(failed)} of {len(failed) + len(answered)} cases: {_errors(failed)}" + (f"; {where}" if where else "")


def alike(defects: Iterable[Alteration], failed: Sequence[Case], evidence: Evidence, found: Combination = ()) -> list[Combination]:
    """The defects, alone or with what was found in the answers, with which the reference fails on exactly these cases, too, and equals the
    answers to all others.

    evidence: of the cases that have answers; there must be one.
    """
    if not evidence.answers:
        return []
    raising = [one for one in defects if all(altered.answer((one,), case) is None for case in failed)]
    for base in ((), found)[: 1 + bool(found)]:
        combinations = [(*base, one) for one in raising if one not in base]
        if same := [each for each in combinations if (evidence.explains(each, each) if evidence.failing else evidence.equals(each))]:
            return same
    return []


def _errors(failed: Failed) -> str:
    """The errors, the commonest first; errors that differ only in numbers are one."""
    kinds = Counter(kind(error) for _, error in failed)
    first = {kind(error): error for _, error in reversed(failed)}
    listed = [_line(first[each]) + (f" (on {count})" if len(kinds) > 1 else "") for each, count in kinds.most_common(LISTED)]
    return ", ".join(listed) + (f", and {len(kinds) - LISTED} other errors" if len(kinds) > LISTED else "")


def _line(error: str) -> str:
    """The first line of an error."""
    line, *rest = error.splitlines() or [""]
    return f"{line} (and {len(rest)} more lines)" if rest else line


def kind(error: str) -> str:
    """The error without its numbers, but for that of the line; bfloat16 is float16."""
    return re.sub(r"\d+(?!\d*\)$)", "0", error.replace("bfloat16", "float16"))
