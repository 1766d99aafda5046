"""Cases on which a port fails: a failure equals nothing, so the search uses only outputs."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ...case import Case
from ...catalogue import Alteration
from .. import altered
from ..altered import Combination
from ..symptoms.conditions import condition
from ..words import fails
from .evidence import Evidence

Failed = Sequence[tuple[Case, str]]  # the failing cases, each with its error


def sentence(failed: Failed, answered: Sequence[Case]) -> str:
    """On how many cases the port fails, with which errors (ignoring numbers), and where."""
    kinds = Counter(kind(error) for _, error in failed)
    first = {kind(error): error for _, error in reversed(failed)}
    return fails(failed, kinds, first, len(answered), condition([case for case, _ in failed], answered))


def alike(defects: Iterable[Alteration], failed: Sequence[Case], evidence: Evidence, found: Combination = ()) -> list[Combination]:
    """The known bugs that make the reference fail on exactly these cases and match all other
    outputs.

    found: alterations that explain the other outputs; the bugs are tried alone and together with
    them. evidence: the cases that have an output; empty evidence gives no bugs.
    """
    if not evidence.answers:
        return []
    raising = [one for one in defects if all(altered.answer((one,), case) is None for case in failed)]
    for base in ((), found)[: 1 + bool(found)]:
        combinations = [(*base, one) for one in raising if one not in base]
        if same := [each for each in combinations if (evidence.explains(each, each) if evidence.failing else evidence.equals(each))]:
            return same
    return []


def kind(error: str) -> str:
    """The error with its numbers replaced, except the line number; bfloat16 counts as float16."""
    return re.sub(r"\d+(?!\d*\)$)", "0", error.replace("bfloat16", "float16"))
