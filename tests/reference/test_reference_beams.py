"""Beam search of the reference, over tables that replace a model: live beams, kept answers, and when a row stops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from reference_numpy import beams, decoding, preset

START, END, PADDING, VOCABULARY = 1, 2, 0, 7
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 5}
CONFIG = preset("tiny", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, padding_id=PADDING)
Past = list[tuple[int, ...]]  # the source's first id of each row, and then the target


class Table:
    """Replaces the model and its cache: a table gives the next token by the row's first source id and the whole target."""

    def __init__(self, logits: Callable[[int, tuple[int, ...]], Any]) -> None:
        self.logits = logits

    def start_cache(self, tree: Any, config: Any, memory: np.ndarray, mask: np.ndarray, batch: int) -> Past:
        return [(int(first),) for first in memory]

    def decode_step(
        self, tree: Any, config: Any, token: np.ndarray, past: list[tuple[int, ...]], mask: np.ndarray
    ) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        read = [(*ids, *map(int, new)) for ids, new in zip(past, token, strict=True)]
        return np.array([[self.logits(first, tokens)] for first, _, *tokens in read], float), read

    def reorder(self, past: Past, row: np.ndarray) -> Past:
        return [past[index] for index in row]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[tuple[tuple[int, ...], float]]]]:
    """Runs beam search over a table; returns each row's answers without the end token, and their scores."""

    def run(logits: Callable, source: list[int], limit: int, width: int, alpha: float) -> list[list[tuple[tuple[int, ...], float]]]:
        monkeypatch.setattr(decoding, "cache", Table(logits))
        monkeypatch.setattr(decoding.transformer, "encode", lambda tree, config, source: source.ids[:, 0])
        options = OPTIONS | {"max_new_tokens": limit, "beam_size": width, "n_best": width, "alpha": alpha}
        found = decoding.beam_search({}, CONFIG, np.array(source)[:, None], options)
        return [
            [(tuple(ids[(ids != PADDING) & (ids != END)].tolist()), score) for ids, score in zip(*row, strict=True) if np.isfinite(score)]
            for row in zip(found["token_bwn"], found["score_bw"], strict=True)
        ]

    return run


def _random_logits(seed: int) -> Callable[[int, tuple[int, ...]], np.ndarray]:
    return lambda first, tokens: np.random.default_rng([seed, first, *tokens, len(tokens)]).normal(0, 2, VOCABULARY)


def _certain(table: dict[tuple[int, ...], dict[int, float]]) -> Callable[[int, tuple[int, ...]], np.ndarray]:
    """Returns logits of these probabilities after each target; all other tokens are practically impossible."""

    def logits(first: int, tokens: tuple[int, ...]) -> np.ndarray:
        values = np.full(VOCABULARY, -1e9)
        for id_, probability in table.get(tuple(tokens), {END: 1.0}).items():
            values[id_] = np.log(probability)
        return values

    return logits


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_beams_take_their_past_along_though_they_change_places(search: Callable, seed: int, alpha: float) -> None:
    """Seven beams hold fewer than all answers, so beams die and others take their places."""
    logits = _random_logits(seed)
    for first, row in zip((3, 5), search(logits, [3, 5], 4, 7, alpha), strict=True):
        for tokens, score in row:
            log_p = 0.0
            for index, id_ in enumerate((*tokens, END)):
                values = np.delete(logits(first, tokens[:index]), [PADDING, START])
                log_p += values[id_ - 2] - np.logaddexp.reduce(values)
            assert_allclose(score, log_p / ((5 + len(tokens) + 1) / 6) ** alpha, rtol=1e-10)


def test_beams_find_the_answers_that_are_best_by_hand(search: Callable) -> None:
    """The best answer begins with the second likeliest token: one beam misses it, two find it."""
    logits = _certain({(): {3: 0.6, 4: 0.4}, (3,): {END: 0.3, 5: 0.7}, (4,): {END: 1.0}})
    assert search(logits, [3], 2, 1, 0.0)[0][0][0] == (3,)
    assert search(logits, [3], 2, 2, 0.0)[0][0][0] == (4,)
    # log p is -1 for no token and -1.2 for two tokens: alpha 0 prefers the first, a large alpha the second
    end = np.exp(-1.2) / (1 - np.exp(-1))
    logits = _certain({(): {END: np.exp(-1), 3: 1 - np.exp(-1)}, (3,): {4: 1.0}, (3, 4): {END: end, 3: 1 - end}, (3, 4, 3): {3: 1.0}})
    assert search(logits, [3], 4, 3, 0.0)[0][0][0] == ()
    assert search(logits, [3], 4, 3, 2.0)[0][0][0] == (3, 4)
    # The three-token answer costs nothing after its first token, so that the length penalty makes it the best
    logits = _certain({(): {END: 0.6, 3: 0.4}, (3,): {4: 1.0}, (3, 4): {5: 1.0}})
    assert search(logits, [3], 4, 1, 2.0)[0][0][0] == (3, 4, 5)
    found = search(_certain({(): {3: 0.5, 4: 0.5}, (3,): {5: 1.0}}), [3], 4, 2, 0.0)[0]
    assert [tokens for tokens, _ in found] == [(3, 5), (4,)]
    assert found[0][1] == found[1][1]


def test_the_search_ends_when_no_row_can_be_improved(search: Callable) -> None:
    longest = 0

    def logits(first: int, tokens: tuple[int, ...]) -> np.ndarray:
        nonlocal longest
        longest = max(longest, len(tokens))
        return np.where(np.arange(VOCABULARY) == END, 30.0, 0.0)

    assert search(logits, [3], 100, 2, 0.0)[0][0][0] == ()
    assert longest == 1


def test_of_equal_beams_the_lower_token_lives_then_the_better_beam() -> None:
    live = [beams.Beam(-1.0, (3,)), beams.Beam(-1.0, (4,))]
    total = np.full((2, VOCABULARY), -9.0)
    total[0, 6], total[1, 5], total[0, 5] = -2.0, -2.0, -2.0
    assert [beam.tokens for beam in beams.best(live, total, 2)] == [(3, 5), (4, 5)]
