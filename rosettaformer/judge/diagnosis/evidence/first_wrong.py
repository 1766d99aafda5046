"""How the output shapes of a whole model differ, and where its error begins.

If every shape is wrong, the values need no search. The begin of an error (at a position, only with
padding, only in a batch or in some dtypes) is reported whether or not its cause is found.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ...case import Case
from ...compare import relative_error
from ...expectation import tolerance
from ..altered import Outputs
from ..symptoms.conditions import condition
from ..words import from_position, only_in
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


def beginning(evidence: Evidence, dtype: str, right: Sequence[str] = ()) -> str:
    """Where a whole model's error begins, in words. right: the dtypes in which it conforms."""
    probes = evidence.probes
    failing = [index for index in evidence.failing if probes[index].folder]
    if not failing:
        return ""
    wrong = [probes[index] for index in failing]
    only = [words for words in (_only(wrong, [probes[index] for index in evidence.right()]),) if words]
    only += [only_in(dtype, right)] if right else []
    places = [_first(probes[index], evidence.clean[index], evidence.answers[index]) for index in failing]
    found = [place for place in places if place is not None]
    where = condition(wrong, [probes[index] for index in evidence.right()]) if not only and len(failing) > 1 else ""
    only += [where] if "above" in where else []
    return ", ".join([*only, *([from_position(min(found), any(map(_left, wrong)))] if found else [])])


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
    return next(len(case.inputs[side]) for side in ("target", "source") if case.inputs.get(side) is not None)


def _first(case: Case, clean: dict[str, tolerance.Expectation], answer: Outputs) -> int | None:
    """The first real token's position with a wrong output; None if it has no positions."""
    name = next(iter(clean))
    got, expected = np.asarray(answer.get(name)), clean[name]
    if got.ndim < 3 or got.shape != expected.reference.shape or case.compared == "last":
        return None
    error = relative_error(expected, got).max(axis=-1)
    error = error if error.ndim == 2 else error.max(axis=0)  # over the layers
    bound = 1.0 if error.max() > 1 else LARGE * error.max()
    position_bt = np.arange(error.shape[1]) if case.real_bt is None else np.maximum(np.cumsum(case.real_bt, axis=1) - 1, 0)
    return int(np.broadcast_to(position_bt, error.shape)[error > bound].min(initial=error.shape[1]))
