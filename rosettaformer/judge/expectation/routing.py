"""The decisions of routers: which experts a token chooses.

An output is discontinuous where two experts score almost alike: rounding decides which one is
chosen. So decisions and values are judged apart. The reference decides in float64; its runs in
other summation orders follow these decisions, and their scores show how exact a score is. A
decision that no errors of that size change is decided, and a port must make it, too. The others are
undecided: the reference follows the port's choice if its outputs show it (`other_experts`).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reference_numpy import TransformerConfig

from .patching import patched

Choice = Callable[[TransformerConfig, np.ndarray], np.ndarray]
ROUTED = "routed_experts"  # the component whose output are the decisions
MANY = 64  # other choices of one token at most


class Token(NamedTuple):
    """A decision of a run: the number of the router's call, the row, and the position in it."""

    call: int
    row: int
    place: int


class Call(NamedTuple):
    """A call of a router. first: the position of its first token in the text. origin: the number of
    the call whose decisions it repeats, or its own.
    """

    choose: Choice
    config: TransformerConfig
    scores_btx: np.ndarray
    chosen_btx: np.ndarray
    first: int
    origin: int


class Decisions:
    """Records the decisions of a run of the reference, and changes some of them.

    forced: the experts of every call; further calls decide themselves. changed: the experts of
    single tokens. gradient: a backward pass computes scores again, and a call with equal scores
    repeats the decisions of the first.
    """

    def __init__(
        self, forced: Sequence[np.ndarray] = (), changed: Mapping[Token, np.ndarray] | None = None, gradient: bool = False
    ) -> None:
        self._forced, self._changed, self._gradient = forced, changed or {}, gradient
        self.calls: list[Call] = []

    def recorded(self) -> contextlib.AbstractContextManager[None]:
        """Records the decisions of what runs inside."""
        return patched({"experts.choice": self._choice})

    def _choice(self, original: Choice, config: TransformerConfig, scores_btx: np.ndarray) -> np.ndarray:
        number = len(self.calls)
        chosen_btx = original(config, scores_btx)
        if number < len(self._forced) and self._forced[number].shape == chosen_btx.shape:
            chosen_btx = self._forced[number]
        origin = self._origin(scores_btx)
        if own := {token: chosen_x for token, chosen_x in self._changed.items() if token.call == origin}:
            chosen_btx = chosen_btx.copy()
            for token, chosen_x in own.items():
                chosen_btx[token.row, token.place] = chosen_x
        self.calls.append(Call(original, config, scores_btx, chosen_btx, self._first(config), origin))
        return chosen_btx

    def _origin(self, scores_btx: np.ndarray) -> int:
        """Returns the number of the call whose decisions the next one repeats, or its own."""
        earlier = self.calls if self._gradient else ()
        return next((number for number, call in enumerate(earlier) if np.array_equal(call.scores_btx, scores_btx)), len(self.calls))

    def _first(self, config: TransformerConfig) -> int:
        """Returns the position of the next call's first token: cached steps go on where the last one ended."""
        layers = sum(map(config.has_experts, range(config.decoder_layers or config.encoder_layers)))
        if len(self.calls) < layers or not layers or self._gradient:
            return 0
        before = self.calls[-layers]
        return before.first + before.scores_btx.shape[1]

    @property
    def made(self) -> list[np.ndarray]:
        """The chosen experts of every call, `b t x`."""
        return [call.chosen_btx for call in self.calls]

    @property
    def scores(self) -> list[np.ndarray]:
        """The scores of every call, `b t x`."""
        return [call.scores_btx for call in self.calls]

    def undecided(self, bounds: Sequence[np.ndarray], real_bt: np.ndarray | None = None) -> Iterator[tuple[Token, int, list[np.ndarray]]]:
        """Yields undecided tokens, their position in the text, and the experts that they may choose instead.

        bounds: the largest errors of the scores of every call, `b t 1`. real_bt: marks the tokens of the text that count.
        """
        for number, (call, bound_bt1) in enumerate(zip(self.calls, bounds, strict=True)):
            rivals = (_of_groups if call.config.router_groups > 1 else _of_scores)(call, bound_bt1) if call.origin == number else {}
            for (row, place), found in rivals.items():
                if counts(real_bt, row, call.first + place):
                    yield Token(number, row, place), call.first + place, found

    def count(self, real_bt: np.ndarray | None = None) -> int:
        """The number of decisions of tokens that count."""
        shapes = [(call.first, *call.chosen_btx.shape[:2]) for number, call in enumerate(self.calls) if call.origin == number]
        return sum(counts(real_bt, row, first + place) for first, rows, length in shapes for row in range(rows) for place in range(length))


def counts(real_bt: np.ndarray | None, row: int, position: int) -> bool:
    """Whether a token of the text counts. real_bt: of the text or its beginning."""
    return real_bt is None or position >= real_bt.shape[1] or bool(real_bt[row, position])


Rivals = dict[tuple[int, int], list[np.ndarray]]  # row and place of a call -> the experts that an undecided token may choose instead


def _of_scores(call: Call, bound_bt1: np.ndarray) -> Rivals:
    """Returns the other choices that errors within the bound can make, the likeliest first, at most MANY."""
    chosen_btx, scores_btx = call.chosen_btx, call.scores_btx
    weakest_bt1 = np.where(chosen_btx, scores_btx, np.inf).min(-1, keepdims=True)
    strongest_bt1 = np.where(chosen_btx, -np.inf, scores_btx).max(-1, keepdims=True)
    found: Rivals = {}
    for row, place in np.argwhere((weakest_bt1 - strongest_bt1 <= 2 * bound_bt1)[..., 0]).tolist():
        scores_x, chosen_x, room = scores_btx[row, place], chosen_btx[row, place], 2 * bound_bt1[row, place, 0]
        lost = np.flatnonzero(chosen_x & (scores_x - strongest_bt1[row, place] <= room)).tolist()
        gained = np.flatnonzero(~chosen_x & (weakest_bt1[row, place] - scores_x <= room)).tolist()
        swaps = (
            (out, into)
            for count in range(1, min(len(lost), len(gained)) + 1)
            for out in map(list, itertools.combinations(lost, count))
            for into in map(list, itertools.combinations(gained, count))
            if scores_x[out].max() - scores_x[into].min() <= room
        )
        found[row, place] = [_swapped(chosen_x, *swap) for swap in itertools.islice(swaps, MANY)]
    return found


def _swapped(chosen_x: np.ndarray, out: list[int], into: list[int]) -> np.ndarray:
    other_x = chosen_x.copy()
    other_x[out], other_x[into] = False, True
    return other_x


def _of_groups(call: Call, bound_bt1: np.ndarray) -> Rivals:
    """Returns the choices with the errors that favor other experts or other groups most.

    The weakest chosen expert goes down and the strongest other up; all chosen go down and all others up;
    all experts of chosen groups go down and all others up.
    """
    choose, config, scores_btx, chosen_btx, *_ = call
    weakest_bt1 = np.where(chosen_btx, scores_btx, np.inf).min(-1, keepdims=True)
    strongest_bt1 = np.where(chosen_btx, -np.inf, scores_btx).max(-1, keepdims=True)
    pair_btx = (scores_btx == weakest_bt1) | (scores_btx == strongest_bt1)
    grouped = chosen_btx.reshape(*chosen_btx.shape[:2], config.router_groups, -1)
    of_groups_btx = np.broadcast_to(grouped.any(-1, keepdims=True), grouped.shape).reshape(chosen_btx.shape)
    errors = [np.where(down_btx, -bound_bt1, bound_bt1) for down_btx in (chosen_btx, of_groups_btx)]
    errors.append(np.where(pair_btx, errors[0], 0.0))
    rivals = [choose(config, scores_btx + error.astype(scores_btx.dtype)) for error in errors]
    others = np.array([(other_btx != chosen_btx).any(axis=-1) for other_btx in rivals])
    return {
        (row, place): [
            *{rival[row, place].tobytes(): rival[row, place] for rival, own in zip(rivals, others, strict=True) if own[row, place]}.values()
        ]
        for row, place in np.argwhere(others.any(axis=0)).tolist()
    }
