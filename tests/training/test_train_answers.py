"""Answers to many sources at once, and the limits of their lengths."""

from typing import Any

import numpy as np

from reference_numpy import decoding, parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.strategy import Strategy
from reference_numpy.training import Trainer
from rosettaformer.use.training.answers import Decoding, Hypothesis, answer
from rosettaformer.use.training.corpus import padded_length
from rosettaformer.use.training.tokens import END, PADDING, START


class Echo:
    """Replaces a Trainer: repeats the first id of the source as often as allowed."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        self.shapes.append(source.shape)
        tokens = np.repeat(source[:, :1], strategy.max_new_tokens, axis=1)
        tokens[:, -1] = END
        return {"token_bn": tokens, "log_p_bn": np.full(tokens.shape, -0.5)}

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, Any]:
        best = self.greedy_search(source, strategy)["token_bn"]
        others = np.full((len(source), strategy.n_best, strategy.max_new_tokens), PADDING)
        others[:, 0] = best
        return {"token_bwn": others, "score_bw": np.full(others.shape[:2], -float(strategy.beam_size))}


def test_answers_keep_the_order_of_the_sources_and_their_limits() -> None:
    sources = [[4] * 20, [5, END], [3, END], [4, END]] * 5
    model = Echo()
    found = answer(model, sources, Decoding({16: 2, 32: 5}, rows=3))
    assert found == [Hypothesis((ids[0],) * limit, -0.5 * (limit + 1)) for ids, limit in zip(sources, (5, 2, 2, 2) * 5, strict=True)]
    assert set(model.shapes) == {(3, 16), (3, 32)}
    assert answer(model, [], Decoding({16: 2})) == []
    wide = answer(model, sources, Decoding({16: 2, 32: 5}, width=2, rows=3))
    assert wide == [Hypothesis(hypothesis.tokens, -2.0) for hypothesis in found]


def test_lengths_are_padded_to_few_and_unseen_ones_have_the_limit_of_the_nearest_shorter() -> None:
    assert [padded_length(length) for length in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]
    known = Decoding({32: 7, 128: 9})
    assert [known.limit(length) for length in (16, 32, 64, 128, 256)] == [7, 7, 7, 9, 9]


def test_padding_to_the_right_changes_no_answer_of_a_real_model() -> None:
    config = preset("tiny", source_vocabulary=20, target_vocabulary=20)
    tensors = parameters.initialise(config, 0, np.float64)
    trainer = Trainer(config, PAPER, tensors)
    rng = np.random.default_rng(0)
    sources = [[*map(int, rng.integers(3, 20, size)), END] for size in (1, 4, 17, 30)]
    together = answer(trainer, sources, Decoding({16: 12, 32: 20}, rows=8))
    assert any(found.tokens for found in together)
    for ids, found in zip(sources, together, strict=True):
        strategy = Strategy(start_id=START, end_id=END, max_new_tokens=13 if len(ids) <= 16 else 21)
        alone = decoding.greedy_search(parameters.nest(tensors), config, np.array([ids]), strategy)["token_bn"][0].tolist()
        assert found.tokens == tuple(id_ for id_ in alone if id_ not in (END, PADDING))
