"""The reference's decoding: steps equal the full run, and searches find the results of plain enumeration."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from reference_numpy import TransformerConfig, cache, decoding, mask, parameters, preset, transformer

START, END, PADDING, VOCABULARY = 1, 2, 0, 7
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 5}
CONFIGS = {
    "post_norm": {},
    "pre_norm": {"norm_placement": "pre", "final_norm": True},
    "grouped_heads": {"key_value_heads": 1},
    "untied": {"share_embeddings": False, "tie_logits": False},
    "no_padding_id": {"padding_id": None},
}


def _config(**changes: Any) -> TransformerConfig:
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "model_width": 12, "feed_forward_width": 8}
    return preset("tiny", **(sizes | {"encoder_layers": 1, "padding_id": PADDING} | changes))


def _parameters(config: TransformerConfig, seed: int = 3) -> dict[str, Any]:
    """Draws parameters larger than at initialization, so that the output depends visibly on what is attended to."""
    rng = np.random.default_rng(seed)
    return parameters.nest({name: rng.standard_normal(shape) * 0.6 for name, shape in parameters.shapes(config).items()})


def _source(batch: int = 3) -> np.ndarray:
    source = np.random.default_rng(5).integers(3, VOCABULARY, (batch, 4))
    source[0, 2:] = PADDING
    source[-1, :1] = PADDING
    return source


def _log_p(tree: Any, config: TransformerConfig, source: np.ndarray, target: list[int]) -> np.ndarray:
    """Returns log p `t v` after each token of one target, from the full run, over the tokens an answer may contain."""
    logits = transformer.transformer(tree, config, source[None], np.array([target]))[0]
    logits[:, [START, PADDING] if config.padding_id is not None else [START]] = -np.inf
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def test_keys_and_values_of_the_memory_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config, calls = _config(), list[int]()
    tree, source = _parameters(config), _source()
    memory = transformer.encode(tree, config, source)
    original = cache.attention.keys_and_values
    monkeypatch.setattr(
        cache.attention, "keys_and_values", lambda tree, config, x, *turned: calls.append(x.shape[1]) or original(tree, config, x, *turned)
    )
    cache.decode_in_steps(tree, config, np.full((3, 4), 4), memory, (1, 1, 2))
    assert calls.count(4) == config.decoder_layers
    assert sum(calls) == 2 * 4 * config.decoder_layers


def test_a_row_takes_its_past_with_it() -> None:
    config = _config()
    tree, source = _parameters(config), _source()
    memory, row = transformer.encode(tree, config, source), np.array([2, 0, 0])
    first, then = np.array([[PADDING, 4], [5, 6], [4, 4]]), np.array([[6], [5], [3]])
    started = cache.start_cache(tree, config, memory, mask.token_mask(source, PADDING))
    _, read = cache.decode_step(tree, config, first, started)
    logits, _ = cache.decode_step(tree, config, then, cache.reorder(read, row))
    whole = np.concatenate([first[row], then], axis=1)
    assert_allclose(logits, transformer.transformer(tree, config, source[row], whole)[:, 2:], atol=1e-12)


def _greedy(tree: Any, config: TransformerConfig, source: np.ndarray, limit: int, prefix: list[int]) -> Iterator[tuple[int, float]]:
    target = list(prefix)
    for _ in range(limit):
        log_p = _log_p(tree, config, source, target)[-1]
        target.append(int(log_p.argmax()))
        yield target[-1], log_p.max()
        if target[-1] == END:
            return


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_search_is_the_full_run_again_and_again(name: str) -> None:
    config = _config(**CONFIGS[name])
    tree, source = _parameters(config), _source()
    answer = decoding.greedy_search(tree, config, source, OPTIONS)
    for row, ids, log_p in zip(source, answer["token_bn"], answer["log_p_bn"], strict=True):
        found = [*_greedy(tree, config, row, 5, [START])]
        length = len(found)
        assert_array_equal(ids[:length], [id_ for id_, _ in found])
        assert_allclose(log_p[:length], [value for _, value in found], rtol=1e-10)
        assert set(ids[length:].tolist()) <= {PADDING if config.padding_id is not None else END}
        assert not log_p[length:].any()


@pytest.mark.parametrize("limit", [5, 2])
def test_a_left_padded_prefix_is_followed_and_may_be_longer_than_the_answer(limit: int) -> None:
    config = _config()
    tree, source = _parameters(config), _source()
    prefix = np.array([[PADDING, PADDING, START], [START, 4, 5], [PADDING, START, 6]])
    answer = decoding.greedy_search(tree, config, source, OPTIONS | {"max_new_tokens": limit}, prefix)
    for row, ids, before in zip(source, answer["token_bn"], prefix, strict=True):
        found = [id_ for id_, _ in _greedy(tree, config, row, limit, before[before != PADDING].tolist())]
        assert_array_equal(ids[: len(found)], found)


def _all_answers(tree: Any, config: TransformerConfig, source: np.ndarray, limit: int, alpha: float) -> list[tuple[float, tuple[int, ...]]]:
    answers = []
    words = [id_ for id_ in range(VOCABULARY) if id_ not in (START, END, PADDING)]
    for length in range(1, limit + 1):
        for body in itertools.product(words, repeat=length - 1):
            log_p = _log_p(tree, config, source, [START, *body])
            total = sum(log_p[place, id_] for place, id_ in enumerate([*body, END]))
            answers.append((total / ((5 + length) / 6) ** alpha, (*body, END)))
    return sorted(answers, key=lambda answer: (-answer[0], answer[1]))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_beams_that_hold_everything_find_the_best_answers(alpha: float) -> None:
    config = _config()
    tree, source = _parameters(config), _source(2)
    options = OPTIONS | {"max_new_tokens": 3, "beam_size": 7, "n_best": 4, "alpha": alpha}
    answer = decoding.beam_search(tree, config, source, options)
    for row, ids, scores in zip(source, answer["token_bwn"], answer["score_bw"], strict=True):
        best = _all_answers(tree, config, row, 3, alpha)[:4]
        assert_allclose(scores, [score for score, _ in best], rtol=1e-10)
        assert [tuple(one[one != PADDING]) for one in ids] == [tokens for _, tokens in best]


def test_samples_follow_the_distribution() -> None:
    config = _config()
    tree, source = _parameters(config), np.repeat(_source()[1:2], 4000, axis=0)
    uniform = np.random.default_rng(0).random((4000, 1))
    drawn = decoding.sample(tree, config, source, OPTIONS | {"max_new_tokens": 1, "temperature": 0.8}, uniform)["token_bn"][:, 0]
    scaled = _log_p(tree, config, source[0], [START])[-1] / 0.8
    expected = np.exp(scaled - np.logaddexp.reduce(scaled))
    observed = np.bincount(drawn, minlength=VOCABULARY) / 4000
    assert np.abs(observed - expected).max() < 4 * np.sqrt(0.25 / 4000)


def test_an_answer_has_its_least_length_repeats_nothing_and_ends_where_nothing_may_follow() -> None:
    config = _config()
    tree, source = _parameters(config), _source()
    options = OPTIONS | {"min_new_tokens": 3, "no_repeat_ngram": 1, "beam_size": 3}
    greedy = decoding.greedy_search(tree, config, source, options)["token_bn"]
    best = decoding.beam_search(tree, config, source, options)["token_bwn"][:, 0]
    for ids in np.concatenate([greedy, best]):
        answer = ids[ids != PADDING].tolist()
        assert len(set(answer)) == len(answer)
        assert END not in answer[:3]
    prefix = np.broadcast_to([START, 3, 4, 5, 6], (3, 5))
    answer = decoding.greedy_search(tree, config, source, OPTIONS | {"min_new_tokens": 2, "no_repeat_ngram": 1}, prefix)
    assert_array_equal(answer["token_bn"], np.broadcast_to([END, 0, 0, 0, 0], (3, 5)))
