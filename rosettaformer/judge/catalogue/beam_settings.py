"""Settings of beam search: which beams continue or end, their scores, and the cache."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import beams
from reference_numpy.beams import Beam
from reference_numpy.cache import KeyValues

from ..expectation.patching import patched
from .alteration import Alteration, Array, setting, settings

ADVANCE = "beams.Row.advance"


def penalised_by(penalty: Callable[[float, float], float]) -> Mapping[str, Callable]:
    """Replaces the length penalty by a function of the length and alpha."""
    return {"beams.length_penalty": lambda original, length, alpha: penalty(length, alpha)}


def _continued(row: Any, scores_wv: Array) -> Array:
    """Returns log p of every continuation of every live beam."""
    return scores_wv[: len(row.live)] + np.array([beam.score for beam in row.live], scores_wv.dtype)[:, None]


def _penalty(row: Any, length: int, dtype: Any) -> Any:
    return dtype.type(beams.length_penalty(length, row.strategy.alpha))


def _finish(row: Any, length: int) -> None:
    row.done = length == row.strategy.max_new_tokens or not row.live or beams.stops(row.live, row.kept, row.strategy)


def ends_among(count: Callable[[int], int], takes_a_place: bool = False) -> Mapping[str, Callable]:
    """Ends a beam only if its end token is among the `count` best continuations overall.

    takes_a_place: the finished beam then replaces a live one.
    """

    def advance(original: Callable, row: Any, scores_wv: Array) -> None:
        if row.done:
            return
        strategy, length = row.strategy, len(row.live[0].tokens) + 1
        total_wv = _continued(row, scores_wv)
        chosen = beams.best(row.live, total_wv, count(strategy.beam_size))
        ending = [beam.parent for beam in chosen if beam.tokens[-1] == strategy.end_id]
        ended_w = np.where(np.isin(np.arange(len(row.live)), ending), total_wv[:, strategy.end_id], total_wv.dtype.type(-np.inf))
        row.kept = beams.keep(row.kept, row.live, ended_w / _penalty(row, length, total_wv.dtype), strategy)
        room = strategy.beam_size - (len(row.kept) if takes_a_place else 0)
        row.live = [beam for beam in chosen if beam.tokens[-1] != strategy.end_id][: max(room, 0)]
        _finish(row, length)

    return {ADVANCE: advance}


def _unfinished_kept(original: Callable, row: Any, scores_wv: Array) -> None:
    """Also returns the unfinished beams at the last token."""
    done, strategy = row.done, row.strategy
    original(row, scores_wv)
    if not done and row.live and len(row.live[0].tokens) == strategy.max_new_tokens:
        penalty = beams.length_penalty(strategy.max_new_tokens, strategy.alpha)
        whole = [Beam(beam.score / penalty, beam.tokens) for beam in row.live]
        row.kept = sorted(row.kept + whole, key=lambda beam: (-beam.score, beam.tokens))[: strategy.beam_size]


def _copies_at_first(original: Callable, row: Any, strategy: Any) -> None:
    original(row, strategy)
    row.live = [Beam(0.0, ())] * strategy.beam_size


def _scored(total: Callable[[Any, Array], Array], divided: bool) -> Callable:
    """Changes the totals of beams. divided: the totals already include the penalty."""

    def advance(original: Callable, row: Any, scores_wv: Array) -> None:
        if row.done:
            return
        strategy, length = row.strategy, len(row.live[0].tokens) + 1
        total_wv = total(row, scores_wv)
        ended_w = total_wv[:, strategy.end_id] / (1 if divided else _penalty(row, length, total_wv.dtype))
        total_wv[:, strategy.end_id] = -np.inf
        row.kept = beams.keep(row.kept, row.live, ended_w, strategy)
        row.live = beams.best(row.live, total_wv, strategy.beam_size)
        _finish(row, length)

    return advance


def _divided(row: Any, scores_wv: Array) -> Array:
    return _continued(row, scores_wv) / _penalty(row, len(row.live[0].tokens) + 1, scores_wv.dtype)


_ROWS: dict[str, tuple[str, Callable, str]] = {
    "unfinished ones kept": ("beam search also returns unfinished beams at the last token", _unfinished_kept, ADVANCE),
    "copies at first": ("all beams start as copies of one and stay equal", _copies_at_first, "beams.Row.__init__"),
    "score divided at each step": (
        "a beam continues with its score after the length penalty instead of log p", _scored(_divided, True), ADVANCE),
    "score of the last token": (
        "a beam is scored by its last token only", _scored(lambda row, scores_wv: scores_wv[: len(row.live)].copy(), False), ADVANCE),
}  # fmt: skip


def _order_of(key: Callable[[Beam], Any]) -> Callable:
    """Keeps the finished beams that come first by this key."""

    def altered(original: Callable, kept: list[Beam], live: list[Beam], ended_w: Array, strategy: Any) -> list[Beam]:
        ended = [Beam(score, (*beam.tokens, strategy.end_id)) for beam, score in zip(live, ended_w, strict=True) if np.isfinite(score)]
        return sorted(kept + ended, key=key)[: strategy.beam_size]

    return altered


def _stops(when: Callable[[list[Beam], list[Beam], Any], bool]) -> Callable:
    return lambda original, live, kept, strategy: bool(when(live, kept, strategy))


def _full(kept: list[Beam], strategy: Any) -> bool:
    return len(kept) >= strategy.beam_size


def _live(live: list[Beam], strategy: Any, length: int) -> float:
    return live[0].score / beams.length_penalty(length, strategy.alpha)


def _partly(key: bool, value: bool, layers: Callable[[int], bool] = lambda index: True) -> Callable:
    """Reorders only a part of the cache with the beams."""

    def altered(original: Callable, given: Any, row_b: Array) -> Any:
        moved = original(given, row_b)

        def pair(index: int, name: str) -> KeyValues:
            old, new = given.layers[index][name], moved.layers[index][name]
            return KeyValues((new if key and layers(index) else old)[0], (new if value and layers(index) else old)[1])

        chosen = [{name: pair(index, name) for name in layer} for index, layer in enumerate(given.layers)]
        return moved._replace(layers=chosen)

    return altered


def _tiled(original: Callable, self: Any, parameters: Any, config: Any, strategy: Any, *rest: Any) -> None:
    """Orders the memory beam by beam but the target row by row."""

    def start(right: Callable, parameters: Any, config: Any, memory_bsd: Any, source_mask_bs: Any = None, batch: Any = None) -> Any:
        if memory_bsd is None:
            return right(parameters, config, memory_bsd, source_mask_bs, batch)
        row_b = np.arange(len(memory_bsd)).reshape(-1, strategy.beam_size).T.reshape(-1)
        mask_bs = None if source_mask_bs is None else source_mask_bs[row_b]
        return right(parameters, config, memory_bsd[row_b], mask_bs, batch)

    with patched({"cache.start_cache": start}):
        original(self, parameters, config, strategy, *rest)


def _shifted_parents(original: Callable, rows: list[Any], size: int) -> tuple[Array, Array]:
    token, row_b = original(rows, size)
    return token, row_b % size


def beam_settings() -> Iterator[Alteration]:
    """Yields the settings of beam search."""

    def of(name: str, title: str, fix: str, altered: Callable, place: str) -> Alteration:
        return setting(f"beams={name}", "beam_search", title, fix, altered, place)

    fix = "consider the end of every live beam, and continue the beam_size best continuations overall"
    for name, (title, altered, place) in _ROWS.items():
        yield of(name, title, fix, altered, place)
    fix = "sort by score, highest first; break ties by the lower token"
    keys: dict[str, tuple[str, Callable[[Beam], Any]]] = {
        "worst kept": ("beam search returns the lowest scores", lambda beam: (beam.score, beam.tokens)),
        "longest first": ("beam search prefers the longest output", lambda beam: (-len(beam.tokens), -beam.score)),
        "shortest first": ("beam search prefers the shortest output", lambda beam: (len(beam.tokens), -beam.score)),
    }
    yield from settings("beams=", "beam_search", fix, keys, "beams.keep", of=_order_of)
    ascending = _returned(lambda kept, strategy: kept[: strategy.n_best][::-1])
    yield of("ascending", "beam search returns the outputs worst first", fix, ascending, "decoding.n_best")
    fix = "stop once beam_size beams are finished and no live beam can beat the worst of them"
    stops: dict[str, tuple[str, Callable[[list[Beam], list[Beam], Any], bool]]] = {
        "first end": ("a row stops at its first finished beam", lambda live, kept, strategy: len(kept) > 0),
        "n_best ends": ("a row stops once n_best beams are finished", lambda live, kept, strategy: len(kept) >= strategy.n_best),
        "best answer": ("a row stops once no live beam can beat the best finished one", lambda live, kept, strategy: (
            bool(kept) and _live(live, strategy, strategy.max_new_tokens) <= kept[0].score)),
        "best answer now": ("a row stops once the best finished beam beats the best live one", lambda live, kept, strategy: (
            bool(kept) and _live(live, strategy, len(live[0].tokens)) <= kept[0].score)),
        "log p": ("a live beam's log p without the length penalty is compared with final scores", lambda live, kept, strategy: (
            _full(kept, strategy) and live[0].score <= kept[-1].score)),
    }  # fmt: skip
    yield from settings("beams=stop: ", "beam_search", fix, stops, "beams.stops", of=_stops)
    fix = "reorder every key, value and mask of the cache to the row that each beam continues"
    moves: dict[str, tuple[str, Callable]] = {
        "values stay": ("the cached values are not reordered with the beams", _partly(True, False)),
        "keys stay": ("the cached keys are not reordered with the beams", _partly(False, True)),
        "first layer": ("only the first layer's cache is reordered with the beams", _partly(True, True, layers=lambda index: index == 0)),
        "other layers": ("the first layer's cache is not reordered with the beams", _partly(True, True, layers=lambda index: index > 0)),
        "inverse": ("the cache is reordered by the inverse permutation", lambda original, given, row_b: original(
            given, _inverted(row_b))),
        "first beam": ("every beam of every row uses the first beam's cache",
                       lambda original, given, row_b: original(given, 0 * row_b + row_b.min())),
    }  # fmt: skip
    yield from settings("beams=cache: ", "beam_search", fix, moves, "cache.reorder")
    fix = "assign the beams b size .. (b + 1) size - 1 to row b"
    yield of("of the first row", "every row's beams use the first row's cache", fix, _shifted_parents, "decoding.continued")
    yield of("memory tiled", "the memory is ordered beam by beam, the target row by row", fix, _tiled, "decoding.Model.__init__")
    endless = _returned(lambda kept, strategy: [beam._replace(tokens=beam.tokens[:-1]) for beam in kept])
    yield of("without the end", "beam search drops the end token", "return the end token", endless, "decoding.n_best")
    title = "the returned scores are log p without the length penalty"
    yield of("scores: log p", title, "return log p / ((5 + n) / 6)^alpha", _returned(_undivided), "decoding.n_best")


def _returned(change: Callable[[list[Beam], Any], list[Beam]]) -> Callable:
    """Returns other beams: a function of the correct ones and the strategy."""

    def altered(original: Callable, rows: list[Any], strategy: Any, *rest: Any) -> dict[str, Array]:
        for row in rows:
            row.kept = change(row.kept, strategy)
        return original(rows, strategy, *rest)

    return altered


def _undivided(kept: list[Beam], strategy: Any) -> list[Beam]:
    return [beam._replace(score=beam.score * beams.length_penalty(len(beam.tokens), strategy.alpha)) for beam in kept]


def _inverted(row_b: Array) -> Array:
    """Inverts a map of rows; a row that no row continues maps to itself."""
    result_b = np.arange(len(row_b))
    result_b[row_b] = np.arange(len(row_b))
    return result_b
