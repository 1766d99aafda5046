"""The decisions on decoding (docs/decisions.md), by id, on the reference: BEAM, SAMPLE, and CAUSAL and POSITION with a cache."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import tree

from reference_numpy import beams, decoding, preset, sampling, transformer
from reference_numpy.strategy import Strategy

START, END, PADDING, V = 1, 2, 0, 6
CONFIG = preset("tiny", source_vocabulary=V, target_vocabulary=V, model_width=5, heads=2, key_value_heads=1, key_size=3, value_size=4)
SOURCE = np.array([[3, 4, 5], [5, PADDING, PADDING], [PADDING, 4, 4]])
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 6}


def strategy(**changes: Any) -> Strategy:
    return Strategy(**OPTIONS | changes)


def logs(beam_count: int, **log_p: float) -> np.ndarray:
    """Returns log p of the next token, the same for each beam: of END and of the ids `t3`; other tokens are impossible."""
    table = np.full((beam_count, V), -np.inf)
    for name, value in log_p.items():
        table[:, END if name == "end" else int(name[1:])] = value
    return table


def test_BEAM_scores_are_divided_by_the_penalty_and_ties_go_to_the_lower_token() -> None:
    for alpha in (0.0, 0.6, 2.0):
        row = beams.Row(strategy(beam_size=4, alpha=alpha))
        row.advance(logs(1, end=-1.5, t3=-0.5))
        row.advance(logs(1, end=-0.25, t4=-0.125))
        scores = {beam.tokens: beam.score for beam in row.kept}
        assert_allclose(scores[(END,)], -1.5)  # (5 + 1) / 6 is 1
        assert_allclose(scores[(3, END)], -0.75 / (7 / 6) ** alpha)
    row = beams.Row(strategy(beam_size=2))
    row.advance(logs(1, end=-1.0, t5=-2.0, t3=-2.0, t4=-2.0))
    assert [beam.tokens for beam in row.live] == [(3,), (4,)]
    row = beams.Row(strategy(beam_size=2, alpha=0.0))
    row.advance(logs(1, end=-3.0, t3=-1.0, t4=-1.0))
    row.advance(logs(2, end=-2.0, t5=-0.5))
    assert [beam.tokens for beam in row.kept] == [(END,), (3, END)]  # all three score -3, and END is the lowest id
    for early in (False, True):
        row = beams.Row(strategy(beam_size=1, alpha=2.0, early_stop=early))
        row.advance(logs(1, end=-5.0, t3=-0.1))
        assert row.done == early


@pytest.mark.parametrize(("log_p", "done"), [(-2.4, False), (-2.6, True)])
def test_BEAM_a_row_goes_on_while_the_longest_answer_could_still_beat_the_worst_that_is_kept(log_p: float, done: bool) -> None:
    """The best live beam is bounded by its log p over the penalty of 6 tokens, (11 / 6)^2; the worst kept answer has -0.75."""
    row = beams.Row(strategy(beam_size=1, alpha=2.0))
    row.advance(logs(1, end=-0.75, t3=log_p))
    assert (log_p / (11 / 6) ** 2 <= -0.75) == (log_p < -2.52)
    assert row.done == done


def test_BEAM_answers_end_in_the_end_the_best_first_and_never_in_padding_or_the_start() -> None:
    parameters = tree(CONFIG, 3)
    for longest in (1, 4):
        answer = decoding.beam_search(parameters, CONFIG, SOURCE, OPTIONS | {"max_new_tokens": longest, "beam_size": 3, "n_best": 3})
        for ids, score in zip(answer["token_bwn"].reshape(-1, longest), answer["score_bw"].ravel(), strict=True):
            real = ids[ids != PADDING].tolist()
            assert (real[-1:] == [END]) == np.isfinite(score)
            assert END not in real[:-1]
    assert np.isneginf(decoding.beam_search(parameters, CONFIG, SOURCE, OPTIONS | {"max_new_tokens": 1, "beam_size": 2, "n_best": 2})
                       ["score_bw"][:, 1]).all()  # fmt: skip
    parameters, wide = tree(CONFIG, 3), OPTIONS | {"beam_size": 4}
    whole = decoding.beam_search(parameters, CONFIG, SOURCE, wide | {"n_best": 4})
    for count in (1, 2):
        some = decoding.beam_search(parameters, CONFIG, SOURCE, wide | {"n_best": count})
        for name, value in some.items():
            assert_array_equal(value, whole[name][:, :count])
    assert (np.diff(whole["score_bw"]) <= 0).all()


def test_SAMPLE_penalties_by_hand_come_before_the_temperature() -> None:
    scores = np.array([[2.0, -2.0, 1.0, 1.0]])
    assert_array_equal(sampling.penalise(scores, np.array([[0, 1]]), 2.0), [[1.0, -4.0, 1.0, 1.0]])
    assert_array_equal(sampling.penalise(scores, np.array([[0, 1]]), 2.0, mask_bn=np.array([[False, True]])), [[2.0, -4.0, 1.0, 1.0]])
    held = np.array([[3, 0, 1, 3, 2, 3]])  # 3 was followed by 0 and by 2
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 2)), [[True, False, True, False]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 1)), [[True, True, True, True]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, np.array([[3, 0, 3, 3, 0, 3]]), 1.0, 3)), [[False, False, False, True]])
    real = np.array([[False, True, True, True, True, True]])
    assert_array_equal(np.isneginf(sampling.penalise(scores, held, 1.0, 2, real)), [[False, False, True, False]])
    real = np.array([[True, True, True, True, True, False]])
    assert not np.isneginf(sampling.penalise(scores, held, 1.0, 2, real)).any()
    assert_array_equal(sampling.penalise(scores, held[:, :2], 1.0, 3), scores)
    scores = sampling.penalise(np.array([[1.5, -1.0, 0.9]]), np.array([[0, 1]]), 2.0)
    assert_array_equal(scores, [[0.75, -2.0, 0.9]])
    assert_allclose(sampling.truncate(scores, temperature=0.5), [[1.5, -4.0, 1.8]])


def test_SAMPLE_the_temperature_comes_before_top_k_and_top_k_before_top_p_which_keeps_the_token_that_crosses_it() -> None:
    logits = np.log([[0.1, 0.4, 0.2, 0.3]])

    def kept(**options: float) -> list[int]:
        return np.flatnonzero(np.isfinite(sampling.truncate(logits, **options)[0])).tolist()

    assert kept(top_k=2) == [1, 3]
    assert kept(top_p=0.3) == kept(top_p=0.4 - 1e-9) == [1]
    assert kept(top_p=0.5) == [1, 3]  # the token that crosses 1/2 stays
    assert kept(top_p=0.8) == [1, 2, 3]
    assert kept(top_p=0.95) == [0, 1, 2, 3]
    assert kept(temperature=0.5, top_p=0.8) == [1, 3]
    assert kept(top_k=3, top_p=0.7) == [1, 3]  # 3 / 9 + 4 / 9 of the remaining three crosses it
    assert kept(temperature=0.5, top_p=0.5) == [1]  # squared, the first has probability 16 / 30
    assert_allclose(sampling.truncate(logits, temperature=2.0), logits / 2)
    ties = np.zeros((1, 4))
    assert_array_equal(np.isfinite(sampling.truncate(ties, top_k=2)), [[True, True, False, False]])


def test_SAMPLE_the_number_alone_decides_by_the_inverse_distribution() -> None:
    logits = np.log([[0.25, 0.5, 0.0, 0.25]] * 5, where=np.array([True, True, False, True]), out=np.full((5, 4), -np.inf))
    assert_array_equal(sampling.draw(logits, np.array([0.0, 0.2499, 0.25, 0.7501, 0.9999])), [0, 0, 1, 3, 3])
    assert_array_equal(sampling.draw(logits[:1, ::-1].astype(np.float32), np.array([1.0], np.float32)), [3])


def test_SAMPLE_the_log_p_of_a_token_is_the_model_s_own() -> None:
    parameters = tree(CONFIG, 3)
    uniform = np.random.default_rng(0).random((3, 6))
    options = OPTIONS | {"temperature": 3.0, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.5, "min_new_tokens": 5}
    answer = decoding.sample(parameters, CONFIG, SOURCE, options, uniform)
    target = np.concatenate([np.full((3, 1), START), answer["token_bn"][:, :-1]], axis=1)
    logits = transformer.transformer(parameters, CONFIG, SOURCE, target)
    logits[..., [START, PADDING]] = -np.inf
    log_p = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    for row in range(3):
        for place in range(5):  # the end token cannot come earlier
            assert_allclose(answer["log_p_bn"][row, place], log_p[row, place, answer["token_bn"][row, place]], rtol=1e-10)
