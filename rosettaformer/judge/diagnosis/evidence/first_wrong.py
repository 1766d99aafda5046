"""What is said first of a whole model: how its shapes differ, and where its error begins.

Where no shape is the reference's, no number needs to be searched. An error begins at a position, or with padding, in a batch, in some
dtypes alone: that is said whether a cause is found or not, since it halves the search.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ...case import Case
from ...compare import relative_error
from ...expectation import tolerance
from ..altered import Outputs
from ..symptoms.conditions import condition
from .evidence import Evidence

AXES = "btv"
Shape = tuple[int, ...]

_RELATIONS: tuple[tuple[str, Callable[[Shape, Shape], bool]], ...] = (
    (
        'it gives one position: say positions = "last" in the file',
        lambda got, b_t_v: got in ((b_t_v[0], b_t_v[2]), (b_t_v[0], 1, b_t_v[2])),
    ),
    ("it gives one row, without an axis for rows", lambda got, b_t_v: got == b_t_v[1:]),
    *(
        (
            f"its axes are {' '.join(AXES[axis] for axis in order)}; {' '.join(AXES)} are required",
            lambda got, b_t_v, order=order: got == tuple(b_t_v[axis] for axis in order),
        )
        for order in itertools.permutations(range(3))
        if order != (0, 1, 2)
    ),
)


def shapes(evidence: Evidence) -> str:
    """How the shapes of the answers that fail differ from the reference's, as a sentence; empty where one is the same."""
    pairs = [
        (tuple(evidence.answers[index][name].shape), expectation.reference.shape)
        for index in evidence.failing
        for name, expectation in evidence.clean[index].items()
        if hasattr(evidence.answers[index].get(name), "shape")
    ]
    if not pairs or any(got == wanted or len(wanted) != len(AXES) for got, wanted in pairs):
        return ""
    for sentence, holds in _RELATIONS:
        if all(holds(*pair) for pair in pairs):
            return sentence
    if all(got[:-1] == wanted[:-1] for got, wanted in pairs):
        return f"a token has {pairs[0][0][-1]} logits; the vocabulary has {pairs[0][1][-1]} entries"
    return f"its shape is {pairs[0][0]}; {pairs[0][1]} is required"


COUNTED = " (positions are counted without padding)"
LARGE = 0.5  # of the largest error: where the root mean square alone is wrong


def beginning(evidence: Evidence, dtype: str, right: Sequence[str] = ()) -> str:
    """Returns it in words; empty for cases that are not of a whole model's folder. right: the dtypes in which the component conforms."""
    probes = evidence.probes
    failing = [index for index in evidence.failing if probes[index].folder]
    if not failing:
        return ""
    wrong = [probes[index] for index in failing]
    only = [words for words in (_only(wrong, [probes[index] for index in evidence.right()]),) if words]
    only += [f"only in {dtype} ({' and '.join(right)} {'conforms' if len(right) == 1 else 'conform'})"] if right else []
    places = [_first(probes[index], evidence.clean[index], evidence.answers[index]) for index in failing]
    found = [place for place in places if place is not None]
    where = condition(wrong, [probes[index] for index in evidence.right()]) if not only and len(failing) > 1 else ""
    only += [where] if "above" in where else []
    counted = COUNTED * any(map(_left, wrong))
    return ", ".join([*only, *([_from(min(found)) + counted] if found else [])])


def _only(wrong: Sequence[Case], right: Sequence[Case]) -> str:
    """Returns what all the cases that fail have and none of the others: padding, or more than one row."""
    kinds = (
        ("only with padding on the left", _left),
        ("only with padding on the right", lambda case: _padded(case) and not _left(case)),
        ("only with padding", _padded),
        ("only in a batch", lambda case: _rows(case) > 1),
    )
    return next((words for words, has in kinds if all(map(has, wrong)) and right and not any(map(has, right))), "")


def _padded(case: Case) -> bool:
    return case.real_bt is not None and not case.real_bt.all()


def _left(case: Case) -> bool:
    return case.real_bt is not None and not case.real_bt[:, 0].all()


def _rows(case: Case) -> int:
    return next(len(case.inputs[side]) for side in ("target", "source") if case.inputs.get(side) is not None)


def _first(case: Case, clean: dict[str, tolerance.Expectation], answer: Outputs) -> int | None:
    """Returns the first position of a real token at which the output is wrong; None if the output has no positions."""
    name = next(iter(clean))
    got, expected = np.asarray(answer.get(name)), clean[name]
    if got.ndim < 3 or got.shape != expected.reference.shape or case.compared == "last":
        return None
    error = relative_error(expected, got).max(axis=-1)
    error = error if error.ndim == 2 else error.max(axis=0)  # of the layers
    bound = 1.0 if error.max() > 1 else LARGE * error.max()
    position_bt = np.arange(error.shape[1]) if case.real_bt is None else np.maximum(np.cumsum(case.real_bt, axis=1) - 1, 0)
    return int(np.broadcast_to(position_bt, error.shape)[error > bound].min(initial=error.shape[1]))


def _from(position: int) -> str:
    if position == 0:
        return "wrong from position 0 on"
    return "equal at position 0, wrong elsewhere" if position == 1 else f"equal up to position {position - 1}, wrong from there on"
