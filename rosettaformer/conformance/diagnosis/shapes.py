"""What the shapes of a whole model's logits say, where none is the reference's: then no number needs to be searched."""

import itertools
from collections.abc import Callable

from .search import Search

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


def shapes(search: Search) -> str:
    """How the shapes of the answers that fail differ from the reference's, as a sentence; empty where one is the same."""
    pairs = [
        (tuple(search.answers[index][name].shape), expectation.reference.shape)
        for index in search.failing
        for name, expectation in search.clean[index].items()
        if hasattr(search.answers[index].get(name), "shape")
    ]
    if not pairs or any(got == wanted or len(wanted) != len(AXES) for got, wanted in pairs):
        return ""
    for sentence, holds in _RELATIONS:
        if all(holds(*pair) for pair in pairs):
            return sentence
    if all(got[:-1] == wanted[:-1] for got, wanted in pairs):
        return f"a token has {pairs[0][0][-1]} logits; the vocabulary has {pairs[0][1][-1]} entries"
    return f"its shape is {pairs[0][0]}; {pairs[0][1]} is required"
