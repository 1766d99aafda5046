"""Greedy and beam search against every answer that there is."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reference_numpy import parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.training import Trainer
from rosettaformer.training.answers import Decoding, answer
from rosettaformer.training.search import Hypothesis, beam, greedy, padded_length
from rosettaformer.training.tokens import END, PADDING, START

V = 6  # three ids are text
LIMIT = 3


class Table:
    """A model whose next token depends on the row's first source id and the whole prefix, as a table of logits tells."""

    steps = 0

    def __init__(self, logits: Callable[[int, tuple[int, ...]], Any]) -> None:
        self.logits, self.lengths = logits, set()

    def encode(self, source: np.ndarray) -> np.ndarray:
        return source[:, 0]

    def decode(self, memory: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        self.lengths.add(target.shape[1])
        result = np.full((*target.shape, V), np.nan)
        for row, ids in enumerate(target):
            for position in range(len(ids)):
                if PADDING not in ids[: position + 1]:
                    result[row, position] = self.logits(int(memory[row]), tuple(map(int, ids[1 : position + 1])))
        return result


def random_logits(seed: int) -> Callable[[int, tuple[int, ...]], np.ndarray]:
    return lambda first, prefix: np.random.default_rng([seed, first, *prefix, len(prefix)]).normal(0, 2, V)


def every_answer(logits: Callable[[int, tuple[int, ...]], Any], first: int, alpha: float, limit: int = LIMIT) -> list[Hypothesis]:
    """All answers of at most `limit` tokens, best first, by the definition."""
    found = []
    for length in range(limit + 1):
        for tokens in itertools.product(range(3, V), repeat=length):
            log_p = 0.0
            for index, id_ in enumerate((*tokens, END)):
                values = np.asarray(logits(first, tokens[:index]), float)[[END, 3, 4, 5]]
                log_p += values[{END: 0, 3: 1, 4: 2, 5: 3}[id_]] - np.log(np.exp(values).sum())
            found.append(Hypothesis(tokens, log_p / ((5 + length + 1) / 6) ** alpha))
    return sorted(found, key=lambda hypothesis: (-hypothesis.score, hypothesis.tokens))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_BEAM_a_wide_beam_finds_the_best_of_every_answer(seed: int, alpha: float) -> None:
    logits, width = random_logits(seed), 27  # as many as there are prefixes of the longest answers
    source = np.array([[3, 4], [5, PADDING], [PADDING, PADDING]])
    found = beam(Table(logits), source, width, alpha, LIMIT)
    for row, first in enumerate((3, 5)):
        wanted = every_answer(logits, first, alpha)[:width]
        assert [hypothesis.tokens for hypothesis in found[row]] == [hypothesis.tokens for hypothesis in wanted]
        np.testing.assert_allclose([h.score for h in found[row]], [h.score for h in wanted], rtol=1e-12)
    assert found[2] == []


def test_a_narrow_beam_keeps_the_likeliest_continuations_only() -> None:
    """The best answer begins with the second likeliest token: a beam of 1 misses it, one of 2 finds it."""
    table = {(): [0, 0, -9, 2.0, 1.5, -9], (3,): [0, 0, 1, 1, 1, 1], (4,): [0, 0, 9, 0, 0, 0]}
    model = Table(lambda first, prefix: np.array(table.get(prefix, [0, 0, 1, 1, 1, 1]), float))
    source = np.array([[3]])
    assert beam(model, source, 1, 0.0, 1)[0][0].tokens == (3,)
    assert beam(model, source, 2, 0.0, 1)[0][0].tokens == (4,)
    assert greedy(model, source, 1)[0].tokens == (3,)


def test_BEAM_of_equal_scores_the_lower_ids_come_first() -> None:
    model = Table(lambda first, prefix: np.zeros(V))
    for width in (2, 3, 5):
        found = beam(model, np.array([[3]]), width, 0.0, 2)[0]
        wanted = every_answer(lambda first, prefix: np.zeros(V), 3, 0.0, 2)[:width]
        assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in wanted]
    assert greedy(model, np.array([[3]]), 2)[0].tokens == ()  # END is the lowest id that may be


def test_BEAM_the_length_penalty_prefers_longer_answers() -> None:
    """log p = -1 for no token and -1.2 for two: alpha 0 takes the first, a large alpha the second."""
    end = np.exp(-1.2) / (1 - np.exp(-1))
    probabilities = {(): {END: np.exp(-1), 3: 1 - np.exp(-1)}, (3,): {4: 1.0}, (3, 4): {END: end, 3: 1 - end}}

    def logits(first: int, prefix: tuple[int, ...]) -> np.ndarray:
        values = np.full(V, -60.0)
        for id_, probability in probabilities.get(prefix, {3: 1.0}).items():
            values[id_] = np.log(probability)
        return values

    assert beam(Table(logits), np.array([[3]]), 3, 0.0, 4)[0][0].tokens == ()
    assert beam(Table(logits), np.array([[3]]), 3, 2.0, 4)[0][0].tokens == (3, 4)


def test_BEAM_the_search_stops_when_no_live_beam_can_beat_the_worst_kept() -> None:
    """Each token but END costs 30: two ends are kept after the second step, and by then each live beam has lost more than the worse one."""
    steps = 0

    def logits(first: int, prefix: tuple[int, ...]) -> np.ndarray:
        nonlocal steps
        steps = max(steps, len(prefix))
        values = np.zeros(V)
        values[END] = 30
        return values

    assert beam(Table(logits), np.array([[3]]), 2, 0.0, 100)[0][0].tokens == ()
    assert steps == 1  # the longest prefix that was continued


def certain(table: dict[tuple[int, ...], dict[int, float]]) -> Callable[[int, tuple[int, ...]], np.ndarray]:
    """Logits of these probabilities after each prefix; every other token is impossible."""

    def logits(first: int, prefix: tuple[int, ...]) -> np.ndarray:
        values = np.full(V, -1e9)
        for id_, probability in table.get(prefix, {END: 1.0}).items():
            values[id_] = np.log(probability)
        return values

    return logits


def test_a_live_beam_lives_while_its_length_could_still_make_it_the_best() -> None:
    """The answer of length 2 costs no more after its first token, and the penalty of its length makes it the best."""
    logits = certain({(): {END: 0.6, 3: 0.4}, (3,): {4: 1.0}, (3, 4): {5: 1.0}})
    assert beam(Table(logits), np.array([[3]]), 1, 2.0, 3)[0][0].tokens == (3, 4, 5)


def test_of_equal_answers_the_lower_ids_come_first_though_found_later() -> None:
    logits = certain({(): {3: 0.5, 4: 0.5}, (3,): {5: 1.0}})
    found = beam(Table(logits), np.array([[3]]), 2, 0.0, 3)[0]
    assert [hypothesis.tokens for hypothesis in found] == [(3, 5), (4,)]
    assert found[0].score == found[1].score


def test_greedy_takes_the_likeliest_token_and_its_score_is_log_p() -> None:
    logits = random_logits(7)
    (found,) = greedy(Table(logits), np.array([[4]]), 10)
    tokens: tuple[int, ...] = ()
    log_p = 0.0
    for _ in range(10):
        values = logits(4, tokens)
        values[[PADDING, START]] = -np.inf
        log_p += values.max() - np.log(np.exp(values).sum())
        if (best := int(values.argmax())) == END:
            break
        tokens = (*tokens, best)
    assert found.tokens == tokens
    assert found.score == pytest.approx(log_p, rel=1e-12)


def test_prefixes_are_padded_to_few_lengths() -> None:
    model = Table(lambda first, prefix: np.array([0, 0, -9, 1, 0, 0.0]))
    assert len(greedy(model, np.array([[3]]), 40)[0].tokens) == 40
    assert model.lengths == {16, 32, 64}
    assert [padded_length(length) for length in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]


def test_padding_to_the_right_changes_no_answer_of_a_real_model() -> None:
    config = preset("tiny", source_vocabulary=20, target_vocabulary=20)
    trainer = Trainer(config, PAPER, parameters.initialise(config, 0, np.float64))
    rng = np.random.default_rng(0)
    sources = [[*map(int, rng.integers(3, 20, size)), END] for size in (1, 4, 17, 30)]
    together = answer(trainer, sources, Decoding({16: 12, 32: 20}, rows=8))
    for ids, found in zip(sources, together, strict=True):
        tokens: list[int] = []
        while len(tokens) < (12 if len(ids) <= 16 else 20):
            source, target = np.array([ids]), np.array([[START, *tokens]])
            logits = trainer.decode(trainer.encode(source), source, target)[0, -1]
            logits[[PADDING, START]] = -np.inf
            if (best := int(logits.argmax())) == END:
                break
            tokens.append(best)
        assert found.tokens == tuple(tokens)


@pytest.mark.filterwarnings("ignore:invalid value")  # of the NaN at positions that may not be read
def test_answers_keep_the_order_of_the_sources_and_their_limits() -> None:
    model = Table(lambda first, prefix: np.eye(V)[3 if len(prefix) else first] * 9)
    sources = [[4] * 20, [5, END], [3, END], [4, END]] * 5
    found = answer(model, sources, Decoding({16: 2, 32: 5}, rows=3))
    assert [hypothesis.tokens[0] for hypothesis in found] == [ids[0] for ids in sources]
    assert {len(hypothesis.tokens) for hypothesis in found} == {2, 5}
    assert answer(model, [], Decoding({16: 2})) == []
    wide = answer(model, sources, Decoding({16: 2, 32: 5}, width=2, rows=3))
    assert [hypothesis.tokens[0] for hypothesis in wide] == [ids[0] for ids in sources]


def test_limits_of_unseen_lengths_are_those_of_the_nearest_shorter() -> None:
    decoding = Decoding({32: 7, 128: 9})
    assert [decoding.limit(length) for length in (16, 32, 64, 128, 256)] == [7, 7, 7, 9, 9]


@pytest.mark.parametrize(("width", "alpha"), [(0, 0.6), (2, -1.0)])
def test_impossible_beams_are_refused(width: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="a beam must have a width of at least 1 and an alpha of at least 0; got"):
        beam(Table(random_logits(0)), np.array([[3]]), width, alpha, 3)
