"""How the output shapes of a whole model differ, and where its error begins.

If every shape is wrong, the values need no search. The begin of an error (at a position, only with
padding, only in a batch or in some dtypes) is reported whether or not its cause is found.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...case import Case
from ...compare import compare, relative_error
from ...expectation import tolerance
from ..altered import Outputs
from ..hypotheses.readings import FirstWrong, culprits, side_of
from ..symptoms.conditions import condition
from ..words import from_id, from_position, in_rows, of_id, only_in
from .evidence import Evidence

AXES = "btv"
Shape = tuple[int, ...]

_RELATIONS: tuple[tuple[str, Callable[[Shape, Shape], bool]], ...] = (
    (
        'it has one position; declare positions = "last" in the file',
        lambda got, b_t_v: got in ((b_t_v[0], b_t_v[2]), (b_t_v[0], 1, b_t_v[2])),
    ),
    ("it has no batch axis", lambda got, b_t_v: got == b_t_v[1:]),
    *(
        (
            f"its axes are {' '.join(AXES[axis] for axis in order)}; they must be {' '.join(AXES)}",
            lambda got, b_t_v, order=order: got == tuple(b_t_v[axis] for axis in order),
        )
        for order in itertools.permutations(range(3))
        if order != (0, 1, 2)
    ),
)


def shapes(evidence: Evidence) -> str:
    """How the shapes of the failing outputs differ; empty if any shape is correct."""
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
        return f"each token has {pairs[0][0][-1]} logits; the vocabulary has {pairs[0][1][-1]} entries"
    return f"it must be {pairs[0][1]}; got {pairs[0][0]}"


LARGE = 0.5  # share of the largest error that counts as wrong if only the root mean square exceeds the tolerance
ENOUGH, RIGHT = 2, 8  # wrong rows, and right tokens, on which a token's property must decide


def beginning(evidence: Evidence, dtype: str, right: Sequence[str] = ()) -> str:
    """Where a whole model's error begins, in words. right: the dtypes in which it conforms."""
    probes = evidence.probes
    failing = [index for index in evidence.failing if probes[index].folder]
    if not failing:
        return ""
    wrong = [probes[index] for index in failing]
    inside = [only_in(dtype, right)] if right else []
    if special := _token(all_first_wrong(evidence)):
        return ", ".join([*inside, special])
    only = [words for words in (_only(wrong, [probes[index] for index in evidence.right()]),) if words] + inside
    where = condition(wrong, [probes[index] for index in evidence.right()]) if not only and len(failing) > 1 else ""
    only += [where] if "above" in where else []
    places = (first_wrong(probes[index], evidence.clean[index], evidence.answers[index]) for index in failing)
    positions = [place.position for place in places if place and place.position is not None]
    return ", ".join([*only, *([from_position(min(positions), any(map(_left, wrong)))] if positions else [])])


def all_first_wrong(evidence: Evidence) -> list[FirstWrong]:
    """Where the rows of each case go wrong, smallest cases first; cases without tokens are left
    out.
    """
    order = [*evidence.cheapest(), *evidence.right()]
    cases = ((evidence.probes[index], evidence.clean[index], evidence.answers[index]) for index in order)
    return [place for place in itertools.starmap(first_wrong, cases) if place]


def _token(found: Sequence[FirstWrong]) -> str:
    """The property of the token at which every wrong row first goes wrong, and that no right token
    has, in words; empty if there is none.

    In a bidirectional model, the property of a token that every wrong row has, and no right one.
    """
    rows = [(one.token_bt[row][one.real_bt[row]], one.place(row)) for one in found for row in range(len(one.token_bt))]
    wrong = [(ids, place) for ids, place in rows if place is not None]
    if len(wrong) < ENOUGH or sum(len(ids[:place]) for ids, place in rows) < RIGHT:
        return ""
    least = min(int(ids[place]) for ids, place in wrong)
    if all(_first(ids == least) == place for ids, place in rows):
        return of_id(least)
    if all(_first(ids >= least) == place for ids, place in rows):
        return from_id(least)
    if any(place for _, place in wrong) or len(rows) - len(wrong) < ENOUGH:
        return ""
    _, ids = culprits(found)
    return in_rows(int(ids[0])) if len(ids) == 1 else ""


def _first(holds: np.ndarray) -> int | None:
    return int(holds.argmax()) if holds.any() else None


def _only(wrong: Sequence[Case], right: Sequence[Case]) -> str:
    """Names padding, or more than one row, if all failing cases and no other case have it."""
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
    return len(case.inputs[side_of(case)])


def first_wrong(case: Case, clean: Mapping[str, tolerance.Expectation], answer: Outputs) -> FirstWrong | None:
    """Where the rows of a case go wrong; None if its outputs have no token axis."""
    name, side = next(iter(clean)), side_of(case)
    got, expected = np.asarray(answer.get(name)), clean[name]
    if not side or got.ndim < 3 or got.shape != expected.reference.shape or case.compared == "last":
        return None
    error = relative_error(expected, got).max(axis=-1)
    error = error if error.ndim == 2 else error.max(axis=0)  # over the layers
    token_bt = case.inputs[side]
    if error.shape != token_bt.shape:
        return None
    real_bt = case.real_bt  # of the other side's tokens, if only those have padding
    real_bt = np.ones(token_bt.shape, bool) if real_bt is None or real_bt.shape != token_bt.shape else real_bt
    wrong_bt = (error > (1.0 if error.max() > 1 else LARGE * error.max())) & real_bt & bool(compare(expected, got).excess > 1)
    return FirstWrong(token_bt, real_bt, np.where(wrong_bt.any(axis=1), wrong_bt.argmax(axis=1), token_bt.shape[1]))
