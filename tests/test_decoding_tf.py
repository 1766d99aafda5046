"""Decoding in the TensorFlow port: its steps and searches beside the truth's, few graphs, fused kernels, half types, errors."""

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from impl_tf import cache, sampling, weights  # noqa: E402
from impl_tf.decoding import Searcher  # noqa: E402
from impl_tf.fast import beams  # noqa: E402
from impl_tf.fast.fused import fused  # noqa: E402
from impl_tf.fast.request import bucket  # noqa: E402
from impl_tf.transformer import Transformer  # noqa: E402
from reference_numpy import TransformerConfig, mask, parameters, preset, transformer  # noqa: E402
from reference_numpy import beams as true_beams  # noqa: E402
from reference_numpy import cache as true_cache  # noqa: E402
from reference_numpy import decoding as truth  # noqa: E402
from reference_numpy import sampling as true_sampling  # noqa: E402
from reference_numpy.strategy import Strategy  # noqa: E402

START, END, PADDING, VOCABULARY = 1, 2, 0, 11
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 5}
CONFIG = preset(
    "tiny", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, model_width=12, heads=4, key_value_heads=4, key_size=3,
    value_size=5, feed_forward_width=7, encoder_layers=1, decoder_layers=2, attention_bias=True, output_bias=True,
)  # fmt: skip
CONFIGS = {
    "tied-post": CONFIG,
    "untied-pre": CONFIG.replace(share_embeddings=False, tie_logits=False, norm_placement="pre", final_norm=True, attention_bias=False),
    "grouped": CONFIG.replace(key_value_heads=2, activation="gelu_tanh", scale_embedding=False),
    "no-padding-id": CONFIG.replace(padding_id=None, key_value_heads=1),
}
PENALTIES = {"repetition_penalty": 1.5, "no_repeat_ngram": 2, "min_new_tokens": 3, "max_new_tokens": 9}


def values(config: TransformerConfig, dtype: str = "float64", seed: int = 3) -> dict[str, np.ndarray]:
    """Larger than at the beginning of training, so that what is read decides what follows."""
    rng = np.random.default_rng(seed)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    return {name: (0.6 * rng.standard_normal(shape)).astype(kind) for name, shape in parameters.shapes(config).items()}


def loaded(config: TransformerConfig, dtype: str = "float64", seed: int = 3) -> Transformer:
    model = Transformer(config, dtype=dtype)
    weights.load(model, values(config, dtype, seed), config)
    return model


def tree(config: TransformerConfig, seed: int = 3) -> dict[str, Any]:
    return parameters.nest(values(config, seed=seed))


def sources(batch: int = 3, length: int = 4, seed: int = 5) -> np.ndarray:
    source = np.random.default_rng(seed).integers(3, VOCABULARY, (batch, length))
    source[0, 2:] = source[-1, :1] = PADDING
    return source


def prefixes(config: TransformerConfig) -> np.ndarray:
    prefix = np.array([[0, 0, START], [START, 4, 5], [0, START, 6]])
    return prefix if config.padding_id is not None else np.where(prefix == 0, 7, prefix)


def same(ours: dict[str, Any], expected: dict[str, np.ndarray], atol: float = 1e-11) -> None:
    assert set(ours) == set(expected)
    for name, array in expected.items():
        found = ours[name].numpy()
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(found, array, rtol=0, atol=0 if array.dtype.kind == "i" else atol, err_msg=name)


@pytest.mark.parametrize("splits", [(6,), (1,) * 6, (3, 2, 1)])
@pytest.mark.parametrize("name", CONFIGS)
def test_any_split_into_steps_gives_the_full_run(name, splits):
    config, source = CONFIGS[name], sources()
    target = np.random.default_rng(6).integers(3, VOCABULARY, (3, 6))
    target[1, :2], target[2, :], target[0, 4] = PADDING, PADDING, PADDING  # a left-padded prompt, an empty row, a row that has ended
    source_mask = mask.token_mask(source, config.padding_id)
    memory = transformer.encode(tree(config), config, source)
    expected = transformer.decode(tree(config), config, target, memory, source_mask)
    found = cache.decode_in_steps(loaded(config), target, memory, splits, source_mask)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_given_masks_are_split_with_the_target():
    memory = np.random.default_rng(0).standard_normal((2, 4, 12))
    target, target_mask = np.full((2, 5), 4), np.array([[False, True, True, False, True], [True] * 5])
    source_mask = np.array([[True, False, True, True], [False] * 4])
    expected = transformer.decode(tree(CONFIG), CONFIG, target, memory, source_mask, target_mask)
    for compiled in (False, True):
        found = cache.decode_in_steps(loaded(CONFIG), target, memory, (2, 2, 1), source_mask, target_mask, compiled=compiled)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        cache.decode_in_steps(loaded(CONFIG), target, memory, (1, 4)),
        true_cache.decode_in_steps(tree(CONFIG), CONFIG, target, memory, (1, 4)), rtol=0, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("copy", [lambda model: model, fused], ids=["model", "fused"])
def test_a_row_takes_its_past_with_it(copy):
    model, source, row = copy(loaded(CONFIG)), sources(), np.array([2, 0, 0])
    first, then = np.array([[3, 4], [5, 6], [4, 4]]), np.array([[6], [5], [3]])
    started = cache.start_cache(model, model.encode(source), mask.token_mask(source, PADDING), length=8)
    _, read = cache.decode_step(model, first, started)
    logits, _ = cache.decode_step(model, then, cache.reorder(read, row))
    whole = np.concatenate([first[row], then], axis=1)
    np.testing.assert_allclose(logits, transformer.transformer(tree(CONFIG), CONFIG, source[row], whole)[:, 2:], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="the cache holds 8 tokens; got 9"):
        cache.decode_step(model, np.full((3, 7), 4), read)


@pytest.mark.parametrize("name", CONFIGS)
def test_searches_are_those_of_the_truth(name):
    config = CONFIGS[name]
    given, source, prefix, searcher = tree(config), sources(), prefixes(config), Searcher(loaded(config), compiled=False)
    uniform = np.random.default_rng(1).random((3, 9))
    options, drawn = OPTIONS | PENALTIES, OPTIONS | PENALTIES | {"temperature": 1.4, "top_k": 6, "top_p": 0.8}
    same(searcher.greedy_search(source, OPTIONS), truth.greedy_search(given, config, source, OPTIONS))
    same(searcher.greedy_search(source, options, prefix), truth.greedy_search(given, config, source, options, prefix))
    same(searcher.sample(source, drawn, uniform, prefix), truth.sample(given, config, source, drawn, uniform, prefix))
    for changes in ({"beam_size": 4, "n_best": 3, "alpha": 1.0}, {**PENALTIES, "beam_size": 3, "early_stop": True}):
        options = OPTIONS | changes
        same(searcher.beam_search(source, options, prefix), truth.beam_search(given, config, source, options, prefix))


def test_a_given_mask_of_the_source_is_used():
    source, source_mask = np.full((2, 4), 5), np.array([[True, False, True, True], [False] * 4])
    searcher = Searcher(loaded(CONFIG), compiled=False)
    for method, search in ((searcher.greedy_search, truth.greedy_search), (searcher.beam_search, truth.beam_search)):
        options = OPTIONS | {"beam_size": 2, "max_new_tokens": 4}
        same(method(source, options, None, source_mask), search(tree(CONFIG), CONFIG, source, options, None, source_mask))


def test_where_nothing_may_follow_the_answer_ends():
    prefix = np.broadcast_to([START, *range(3, VOCABULARY)], (3, VOCABULARY - 2))
    options = OPTIONS | {"min_new_tokens": 2, "no_repeat_ngram": 1}
    searcher, expected = Searcher(loaded(CONFIG), compiled=False), np.broadcast_to([END, 0, 0, 0, 0], (3, 5))
    np.testing.assert_array_equal(searcher.greedy_search(sources(), options, prefix)["token_bn"], expected)
    np.testing.assert_array_equal(searcher.sample(sources(), options, np.full((3, 5), 0.5), prefix)["token_bn"], expected)
    found = searcher.beam_search(sources(), options, prefix)
    assert (found["token_bwn"].numpy() == PADDING).all()
    assert np.isneginf(found["score_bw"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_long_beam_searches_are_those_of_the_truth(seed):
    config, rng = CONFIG, np.random.default_rng(seed)
    options = OPTIONS | {"max_new_tokens": 20, "beam_size": 5, "n_best": 5, "alpha": float(rng.choice([0.0, 0.6, 2.0]))}
    source = sources(seed=seed)
    expected = truth.beam_search(tree(config, seed), config, source, options)
    same(Searcher(loaded(config, seed=seed), compiled=False).beam_search(source, options), expected)


def test_graphs_serve_all_lengths_of_a_bucket_and_all_values():
    config = CONFIGS["grouped"].replace(decoder_layers=1)
    model = loaded(config)
    given, searcher, uniform = tree(config), Searcher(model), np.random.default_rng(1).random((3, 12))
    drawn = OPTIONS | PENALTIES | {"temperature": 1.4, "top_k": 6, "top_p": 0.8}
    prefix = prefixes(config)

    def check(length: int, limit: int, **changes: Any) -> None:
        source, least = sources(length=length, seed=length), {"max_new_tokens": limit}
        options = OPTIONS | least | {"beam_size": 3, "n_best": 2} | changes
        same(searcher.greedy_search(source, OPTIONS | least), truth.greedy_search(given, config, source, OPTIONS | least))
        sampled = drawn | least | {"temperature": 0.7 + limit / 10, "min_new_tokens": 2, "end_id": 2 + length % 2}
        same(
            searcher.sample(source, sampled, uniform[:, :limit], prefix),
            truth.sample(given, config, source, sampled, uniform[:, :limit], prefix),
        )
        same(searcher.beam_search(source, options), truth.beam_search(given, config, source, options))

    check(4, 5)
    compiled = searcher.graphs
    assert compiled == 3
    prefix = prefix[:, 1:]
    check(9, 7, alpha=2.0, n_best=1)
    prefix = prefixes(config)
    check(16, 12, early_stop=True, end_id=4)
    assert searcher.graphs == compiled


def test_a_refreshed_searcher_has_the_weights_of_now_and_compiles_nothing():
    config, source = CONFIG.replace(decoder_layers=1), sources()
    model = loaded(config)
    searcher = Searcher(model)
    for seed in (3, 4):
        weights.load(model, values(config, seed=seed), config)
        before = searcher.greedy_search(source, OPTIONS)  # a snapshot: what is loaded does not reach it
        same(before, truth.greedy_search(tree(config), config, source, OPTIONS))
    searcher.refresh(model)
    same(searcher.greedy_search(source, OPTIONS), truth.greedy_search(tree(config, 4), config, source, OPTIONS))
    assert searcher.graphs == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_kernels_are_the_kernels_beside_each_other(name):
    config, given = CONFIGS[name], values(CONFIGS[name])
    layer = fused(loaded(config)).decoder.layers[1]

    def joined(attention: str, parts: tuple[str, ...], end: str) -> np.ndarray:
        rows = config.model_width if end == "kernel" else 1
        return np.concatenate([given[f"decoder.layers.1.{attention}.{part}.{end}"].reshape(rows, -1) for part in parts], axis=1)

    for attention, projection, parts in (
        ("self_attention", layer.self_attention.query_key_value, ("query", "key", "value")),
        ("cross_attention", layer.cross_attention.key_value, ("key", "value")),
    ):
        np.testing.assert_array_equal(projection.kernel, joined(attention, parts, "kernel"))
        if config.attention_bias:
            np.testing.assert_array_equal(projection.bias[np.newaxis], joined(attention, parts, "bias"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fused_model_gives_what_the_model_gives(name):
    model, source = loaded(CONFIGS[name]), sources()
    target = np.random.default_rng(6).integers(3, VOCABULARY, (3, 6))
    np.testing.assert_allclose(fused(model)(source, target), model(source, target), rtol=0, atol=1e-12)


def test_half_types_compute_log_p_in_float32():
    model = loaded(CONFIG, "float32")
    half = {name: array.astype(tf.bfloat16.as_numpy_dtype) for name, array in values(CONFIG, "float32").items()}
    searcher = Searcher(model, "bfloat16", compiled=False)
    assert {tf.as_dtype(variable.dtype) for variable in searcher.model.trainable_variables} == {tf.bfloat16}
    found = searcher.greedy_search(sources(), OPTIONS)
    assert found["log_p_bn"].dtype == tf.float32
    rounded = parameters.nest({name: array.astype(np.float64) for name, array in half.items()})
    expected = truth.greedy_search(rounded, CONFIG, sources(), OPTIONS)
    # Where the tokens are the same, log p is that of the rounded weights to the precision of bfloat16.
    agree = (found["token_bn"].numpy() == expected["token_bn"]).cumprod(axis=1).astype(bool)
    assert agree[:, 0].any()
    np.testing.assert_allclose(found["log_p_bn"].numpy()[agree], expected["log_p_bn"][agree], rtol=0, atol=0.1)
    assert searcher.beam_search(sources(), OPTIONS | {"beam_size": 2})["score_bw"].dtype == tf.float32


@pytest.mark.parametrize("seed", range(6))
def test_sampling_is_that_of_the_truth_with_ties(seed):
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((4, 9)), 0)
    token, real = rng.integers(0, 5, (4, 8)), rng.random((4, 8)) < 0.8
    for penalty, ngram in ((1.0, 0), (1.5, 0), (0.5, 1), (2.0, 2), (1.0, 3), (1.0, 9)):
        for mask_bn in (None, real):
            expected = true_sampling.penalise(scores, token, penalty, ngram, mask_bn)
            np.testing.assert_array_equal(sampling.penalise(tf.constant(scores), tf.constant(token), penalty, ngram, mask_bn), expected)
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.7, 3, 1.0), (1.3, 0, 0.6), (2.0, 5, 0.7), (1.0, 50, 0.999)):
        expected = true_sampling.truncate(scores, temperature, top_k, top_p)
        np.testing.assert_allclose(sampling.truncate(tf.constant(scores), temperature, top_k, top_p), expected, rtol=1e-15)
        uniform = rng.random(4)
        found = sampling.draw(tf.constant(expected), tf.constant(uniform))
        assert found.dtype == tf.int64
        np.testing.assert_array_equal(found, true_sampling.draw(expected, uniform))


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999])
def test_large_vocabularies_are_sorted_as_far_as_is_needed(top_p):
    logits, count = 1.5 * np.random.default_rng(0).standard_normal((3, 700)), tf.constant(40)
    logits[:, ::7] = np.round(logits[:, ::7])
    for run in (sampling.truncate, tf.function(sampling.truncate)):
        found = run(tf.constant(logits), 1.2, 0, tf.constant(top_p, tf.float64))
        np.testing.assert_allclose(found, true_sampling.truncate(logits, 1.2, 0, top_p), rtol=1e-15)
        found = run(tf.constant(logits), 1.2, count, top_p, 64)
        np.testing.assert_allclose(found, true_sampling.truncate(logits, 1.2, 40, top_p), rtol=1e-15)


def test_where_probabilities_add_up_to_less_than_the_number_the_last_possible_id_is_drawn():
    logits = np.log([[0.25, 0.5, 0.25, 1.0]], where=[True, True, True, False], out=np.full((1, 4), -np.inf)).astype(np.float32)
    assert int(sampling.draw(tf.constant(logits), tf.constant([1.0]))[0]) == 2


def test_equal_hypotheses_go_to_the_lower_tokens_then_to_the_better_beam():
    strategy = Strategy(**(OPTIONS | {"beam_size": 3, "max_new_tokens": 4}))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        row = true_beams.Row(strategy)
        (live, kept), done = beams.start(1, 3, 4, tf.constant(PADDING), tf.float64), False
        for step in range(4):
            scores = np.round(rng.standard_normal((3, VOCABULARY)), 0) - 2
            row.advance(scores.copy())
            total = scores + live.score_bw.numpy()[0][:, np.newaxis]
            ended = total[:, END] / true_beams.length_penalty(step + 1, strategy.alpha)
            total[:, END] = -np.inf
            kept = beams.choose(tf.constant([done]), kept, beams.keep(kept, live, tf.constant(ended[np.newaxis]), END, step))
            live, _, parent = beams.best(live, tf.constant(total[np.newaxis]), step)
            done = row.done
            assert [beam.score for beam in row.kept] == kept.score_bw.numpy()[0][: len(row.kept)].tolist()
            assert [[*beam.tokens, 0, 0, 0, 0][:4] for beam in row.kept] == kept.token_bwn.numpy()[0][: len(row.kept)].tolist()
            if done:
                break
            assert [list(beam.tokens) for beam in row.live] == live.token_bwn.numpy()[0][:, : step + 1].tolist()
            assert [beam.parent for beam in row.live] == parent.numpy()[0].tolist()


def test_buckets():
    assert [bucket(length) for length in (1, 16, 17, 33, 64, 65, 128, 129)] == [16, 16, 32, 64, 64, 128, 128, 192]
