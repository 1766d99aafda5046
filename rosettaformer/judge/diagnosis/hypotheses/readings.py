"""Other readings of a whole model's prompts: other ids, another mask, other positions.

Numbers such as the id from which on all ids read alike are not listed: they follow from the tokens
at which the port's outputs first go wrong.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...case import MASKS, Case
from ...catalogue import Alteration
from ...catalogue.alteration import on_result, reading, setting
from ...catalogue.fills import uniform_when_empty
from .inputs import modulo

SIDES = dict(reversed(MASKS.items()))
MOST = 64  # candidates for one number
FEW = 8  # ids, each of which may be the one that is read as another
TOLD = ("ids=", "positions=", "rotation=")  # beginnings of the ids of readings that the first wrong tokens tell
POSITIONS, SOFTMAX = "positional_encoding.token_positions", "softmax.softmax"
Array = np.ndarray
Change = Callable[[Array], Array]


class FirstWrong(NamedTuple):
    """Where the rows of one case go wrong.

    token_bt: the ids. real_bt: the real tokens. column_b: the column of each row's first wrong
    output; the row's length if none is wrong.
    """

    token_bt: Array
    real_bt: Array
    column_b: Array

    def place(self, row: int) -> int | None:
        """The position of a row's first wrong output among its real tokens; None if all are right."""
        column = self.column_b[row]
        return int(self.real_bt[row, :column].sum()) if column < self.token_bt.shape[1] else None

    @property
    def position(self) -> int | None:
        """The smallest such position; None if every row is right."""
        return min((place for row in range(len(self.token_bt)) if (place := self.place(row)) is not None), default=None)


def culprits(found: Sequence[FirstWrong]) -> tuple[Array, Array]:
    """The ids of tokens before any wrong output, and those at which rows first go wrong.

    Where rows are right or wrong from their first token on, as in a bidirectional model: the ids in
    right rows, and those that every wrong row has and no right one.
    """
    rows = [(one.token_bt[row][one.real_bt[row]], one.place(row)) for one in found for row in range(len(one.token_bt))]
    right = {int(id_) for ids, place in rows for id_ in ids[:place]}
    wrong = [ids[place:] for ids, place in rows if place is not None]
    at_once = not any(place for _, place in rows)
    ids = set.intersection(*({*ids.tolist()} for ids in wrong)) if at_once and wrong else {int(ids[0]) for ids in wrong}
    return np.array(sorted(right), int), np.array(sorted(ids - right), int)


def side_of(case: Case) -> str:
    """The side whose tokens the case's outputs belong to; empty if it has none."""
    return next((side for side in SIDES if isinstance(case.inputs.get(side), np.ndarray) and case.inputs[side].ndim == 2), "")


def readings(cases: Sequence[Case], found: Sequence[FirstWrong]) -> list[Alteration]:
    """The readings that the first wrong outputs allow, plainest first.

    cases: of one component. found: where those with an output per token go wrong.
    """
    side = side_of(cases[0]) if cases else ""
    if not side or not cases[0].folder:
        return []
    right, wrong = culprits(found)
    vocabulary = getattr(cases[0].config, f"{side}_vocabulary")
    masks = [*_masks(side, cases, wrong), *_segments(cases)]
    return [
        *masks,
        *_filled(SIDES[side], cases, masks),
        *_ids(side, vocabulary, right, wrong),
        *_limits(found, cases[0].config.positions == "rotary"),
    ]


def _filled(name: str, cases: Sequence[Case], masks: Iterable[Alteration]) -> Iterator[Alteration]:
    """Lets rows that a mask hides completely attend to all keys, as a finite fill does."""
    for one in masks:
        read = (one.reads(case).inputs.get(name) for case in cases if one.reads)
        if any(mask is not None and not mask.any(axis=1).all() for mask in read):
            yield dataclasses.replace(one, id=f"{one.id}, filled", replaces={SOFTMAX: uniform_when_empty})


def _read(name: str, title: str, fix: str, change: Callable[[Case], Case]) -> Alteration:
    return reading(name, "transformer", title, fix, change)


def _from(first: int, other: int) -> Change:
    return lambda given: np.where(given >= first, other, given)


def _as(own: int, other: int) -> Change:
    return lambda given: np.where(given == own, other, given)


def _ids(side: str, vocabulary: int, right: Array, wrong: Array) -> Iterator[Alteration]:
    """The ids read otherwise: clamped, wrapped or replaced from the first wrong one on, or one.

    Yields nothing if no token is right.
    """

    def other(name: str, title: str, change: Change) -> Alteration:
        fix = "read every id of the vocabulary as it is"
        return _read(f"ids={name}", title, fix, lambda case: case.given({side: change(case.inputs[side])}))

    if not len(wrong) or not len(right):
        return
    for first in _numbers(int(right.max()) + 1, int(wrong.min())):
        if first:
            last = first - 1
            yield other(f"clamped to {last}", f"ids from {first} on are read as {last}", functools.partial(np.minimum, last))
            yield other(f"modulo {first}", f"ids are read modulo {first}", functools.partial(modulo, first))
        for one in (0, 1):
            title = f"ids from {first} on are read as {one}"
            yield other(f"{one} from {first} on", title, _from(first, one))
    for own in wrong if len(wrong) <= FEW else ():
        near = [own - 1, own + 1, 0, 1, 2, vocabulary - 1]
        for one in range(vocabulary) if vocabulary <= 2 * MOST else sorted({int(each) for each in near if 0 <= each < vocabulary}):
            if (own, one) == (vocabulary - 1, vocabulary - 2):
                continue  # the same as clamped ids
            title = f"the id {own} is read as {one}"
            yield other(f"{own} as {one}", title, _as(own, one))


def _numbers(least: int, most: int) -> Iterable[int]:
    """The candidates for a number between two bounds: all, or the bounds and round numbers."""
    if most - least < MOST:
        return range(most, least - 1, -1)
    steps = (step * (most // step) for step in (10, 64, 100, 1000, 1024))
    return dict.fromkeys([most, *(number for number in steps if number >= least), 1 << (most.bit_length() - 1), least])


def _masks(side: str, cases: Sequence[Case], wrong: Array) -> Iterator[Alteration]:
    """The mask ignored, inverted, reversed, of the first row, counted, or inferred from the ids."""
    name, config = SIDES[side], cases[0].config
    fix = f"use the mask that is passed, `{name}`"

    def masked(id_: str, title: str, change: Callable[[Array, Array], Array | None], always: bool = False) -> Alteration:
        def read(case: Case) -> Case:
            ids, mask = case.inputs[side], case.inputs.get(name)
            if mask is None and not always:
                return case
            return case.given({name: change(np.ones(ids.shape, bool) if mask is None else mask, ids)})

        return _read(f"mask={id_}", title, fix, read)

    yield masked("ignored", "the mask is ignored", lambda mask, ids: None)
    yield masked("inverted", "the mask is inverted", lambda mask, ids: ~mask)
    yield masked("reversed", "the padding is taken to be on the other side", lambda mask, ids: mask[:, ::-1])
    yield masked("of the first row", "every row has the first row's mask", lambda mask, ids: np.broadcast_to(mask[:1], mask.shape))
    title = "the mask is made from each row's number of real tokens, as if all padding were on the {}"
    yield masked("counted right", title.format("right"), lambda mask, ids: np.arange(mask.shape[1]) < mask.sum(axis=1, keepdims=True))
    yield masked("counted left", title.format("left"), lambda mask, ids: np.arange(mask.shape[1])[::-1] < mask.sum(axis=1, keepdims=True))
    special = {0, 1, config.padding_id, getattr(config, f"{side}_vocabulary") - 1, *wrong[:MOST]} - {None}
    for id_ in sorted(map(int, special)):
        title = f"the mask is ignored and inferred from the ids: every token of id {id_} counts as padding"
        yield masked(f"ids other than {id_}", title, functools.partial(_inferred, id_, False), always=True)
        title = f"every token of id {id_} counts as padding, in addition to the mask"
        yield masked(f"without id {id_}", title, functools.partial(_inferred, id_, True), always=True)


def _inferred(padding: int, given: bool, mask: Array, ids: Array) -> Array:
    return mask & (ids != padding) if given else ids != padding


def _limits(found: Sequence[FirstWrong], rotary: bool) -> Iterator[Alteration]:
    """A table of positions that ends at the first wrong position, or starts again there. rotary:
    whether it is RoPE's.
    """
    positions = [one.position for one in found if one.position is not None]
    for end in {min(positions)} - {0} if positions else ():
        fix = "give every position its own entry"
        for name, title, change in (
            (f"clamped to {end - 1}", f"positions from {end} on are read as {end - 1}", functools.partial(np.minimum, end - 1)),
            (f"modulo {end}", f"positions are read modulo {end}", functools.partial(modulo, end)),
        ):
            if rotary:
                yield setting(f"rotation={name}", "rotary_embedding", f"in RoPE, {title}", fix, _turned(change), "rotary.rotation")
            else:
                yield setting(f"positions={name}", "token_positions", title, fix, on_result(change), POSITIONS)


def _turned(change: Change) -> Callable:
    return lambda original, config, kind, position_bt, dtype: original(config, kind, change(position_bt), dtype)


def _segments(cases: Sequence[Case]) -> Iterator[Alteration]:
    """Segments and mask exchanged, or the segments of other tokens."""
    if cases[0].config.segments < 2 or side_of(cases[0]) != "source":
        return

    def exchanged(case: Case) -> Case:
        ids, mask, segment = (case.inputs.get(name) for name in ("source", "source_mask_bs", "segment_bs"))
        if ids is None:
            return case
        mask = np.ones(ids.shape, bool) if mask is None else mask
        segment = np.zeros(ids.shape, int) if segment is None else segment
        return case.given({"source_mask_bs": segment != 0, "segment_bs": mask.astype(segment.dtype)})

    def inverted(case: Case) -> Case:
        segment = case.inputs.get("segment_bs")
        return case if segment is None else case.given({"segment_bs": 1 - np.minimum(segment, 1)})

    yield _read("segments=mask", "mask and segments are exchanged", "pass the mask as the mask and the segments as the segments", exchanged)
    yield _read("segments=inverted", "the segments 0 and 1 are exchanged", "pass the segments as they are", inverted)
