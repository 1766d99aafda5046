"""One test per decision (docs/decisions.md), by its id, on the reference: manually computed numbers and closed forms."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import HALF, every_dtype, half_precision, tree

from reference_numpy import (
    attention,
    dropout,
    embedding,
    layers,
    loss,
    mask,
    normalization,
    optimizer,
    parameters,
    positional_encoding,
    preset,
    schedule,
    sites,
    stacks,
    transformer,
)
from reference_numpy.scores import Scores
from reference_numpy.softmax import softmax
from reference_numpy.values import Attending, Drop, Heads, Text

CONFIG = preset("tiny", target_vocabulary=101, model_width=5, heads=2, key_value_heads=1, key_size=3, value_size=4, attention_bias=True)


def attend(dtype: Any = np.float64, keys: int = 3, queries: int = 1, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """Computes attention of one head whose logits are all 0 and whose values are one-hot rows, so that the output equals the weights."""
    query, key = np.zeros((1, queries, 1, 2), dtype), np.ones((1, keys, 1, 2), dtype)
    heads = Heads(query, key, np.eye(keys, dtype=dtype)[None, :, None])
    return attention.scaled_dot_product_attention(heads, **arguments), attention.attention_weights(query, key, **arguments)


@every_dtype
def test_MASK_true_means_may_attend(dtype: Any) -> None:
    output, weights = attend(dtype, mask_bhts=np.array([True, False, True])[None, None, None])
    assert_array_equal(weights.ravel().astype(float), [0.5, 0, 0.5])
    assert_array_equal(output.ravel().astype(float), [0.5, 0, 0.5])


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 5), (2, 1, 4, 1), (1, 3, 1, 1), (1, 1, 1, 1), (2, 1, 1, 5)])
def test_MASK_is_broadcast_to_b_h_t_s(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(2, 4, 3, 2)), rng.normal(size=(2, 5, 3, 2)), rng.normal(size=(2, 5, 3, 6))
    small = rng.random(shape) < 0.7
    full = np.ascontiguousarray(np.broadcast_to(small, (2, 3, 4, 5)))
    expected = attention.scaled_dot_product_attention(Heads(query, key, value), full)
    assert_array_equal(attention.scaled_dot_product_attention(Heads(query, key, value), small), expected)
    hidden = np.where(small, 0, -np.inf)
    assert_array_equal(attention.scaled_dot_product_attention(Heads(query, key, value), hidden), expected)
    for b, h, t in np.ndindex(2, 3, 4):
        seen = full[b, h, t]
        weights = np.exp(key[b, seen, h] @ query[b, t, h] / math.sqrt(2))
        by_hand = weights @ value[b, seen, h] / weights.sum() if seen.any() else np.zeros(6)
        assert_allclose(expected[b, t, h], by_hand, rtol=1e-13, atol=1e-15)


def test_MASK_that_is_floating_is_added_and_one_of_integers_is_refused() -> None:
    bias = np.array([math.log(3), 0.0])[None, None, None]
    for found in attend(keys=2, mask_bhts=bias):
        assert_allclose(found.ravel(), [0.75, 0.25], rtol=1e-15)
    bias = np.array([math.log(3), -np.inf, 0.0])[None, None, None]
    for found in attend(keys=3, mask_bhts=bias):
        assert_allclose(found.ravel(), [0.75, 0, 0.25], rtol=1e-15)
    for number in (np.ones((1, 1, 1, 2), int), np.ones((1, 1, 1, 2), np.uint8)):
        with pytest.raises(ValueError, match=f"{number.dtype}$"):
            attend(keys=2, mask_bhts=number)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5), (2, 1, 4, 1), (1, 1, 1, 1)])
def test_MASK_that_is_floating_is_added_to_the_scores_that_the_weights_are_the_softmax_of(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(2, 4, 6, 2)), rng.normal(size=(2, 5, 3, 2)), rng.normal(size=(2, 5, 3, 6))
    bias = np.where(rng.random(shape) < 0.7, rng.normal(size=shape), -np.inf)
    if shape[1] == 3:
        bias = bias.repeat(2, axis=1)
    weights = attention.attention_weights(query, key, bias)
    output = attention.scaled_dot_product_attention(Heads(query, key, value), bias)
    full = np.broadcast_to(bias, (2, 6, 4, 5))
    for b, h, t in np.ndindex(2, 6, 4):
        by_hand = np.exp(key[b, :, h // 2] @ query[b, t, h] / math.sqrt(2) + full[b, h, t])
        by_hand = by_hand / by_hand.sum() if by_hand.any() else by_hand
        assert_allclose(weights[b, h, t], by_hand, rtol=1e-13, atol=1e-15)
        assert_allclose(output[b, t, h], by_hand @ value[b, :, h // 2], rtol=1e-13, atol=1e-15)


@every_dtype
def test_EMPTY_query_without_a_key_returns_zeros_and_its_attention_the_output_bias(dtype: Any) -> None:
    seen = np.array([[True, True], [False, False], [False, True]])[None, None]
    output, weights = attend(dtype, 2, 3, mask_bhts=seen)
    assert_array_equal(weights[0, 0].astype(float), [[0.5, 0.5], [0, 0], [0, 1]])
    assert_array_equal(output[0, :, 0].astype(float), [[0.5, 0.5], [0, 0], [0, 1]])
    assert_array_equal(softmax(np.array([[1, 9], [-9, 1]], dtype), np.zeros((1, 1), bool)).astype(float), np.zeros((2, 2)))
    output, weights = attend(dtype, 2, 3, scores=Scores(causal=True), mask_bhts=np.full((1, 1, 1, 1), 6e4, dtype))
    assert_array_equal(weights[0, 0].astype(float), [[0, 0], [1, 0], [0.5, 0.5]])
    assert_array_equal(output[0, 0].astype(float), [[0, 0]])
    output, weights = attend(dtype, 2, 3, mask_bhts=np.where(seen, 0, -np.inf).astype(dtype))
    assert_array_equal(weights[0, 0].astype(float), [[0.5, 0.5], [0, 0], [0, 1]])
    assert_array_equal(output[0, :, 0].astype(float), [[0.5, 0.5], [0, 0], [0, 1]])
    part = tree(CONFIG, 1, "multi_head_attention", dtype)
    x = np.random.default_rng(2).normal(size=(1, 2, 5)).astype(dtype)
    seen = np.array([[False], [True]])[None, None]
    output = attention.multi_head_attention(part, CONFIG, x, x, Attending(seen))
    query, key, *_ = attention.project(part, CONFIG, x, x)
    weights = attention.attention_weights(query, key, seen)
    assert_array_equal(output[0, 0], part["output"]["bias"])
    assert_array_equal(weights[0, :, 0].astype(float), np.zeros((2, 2)))


@every_dtype
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_EMPTY_whole_model_is_never_nan(dtype: Any, placement: str) -> None:
    config = CONFIG.replace(norm_placement=placement)
    source, target = np.array([[0, 0, 0], [0, 5, 0]]), np.array([[0, 0], [0, 7]])
    logits = transformer.transformer(tree(config, 3, dtype=dtype), config, source, target)
    assert logits.dtype == dtype
    assert np.isfinite(logits.astype(float)).all()


def test_CAUSAL_is_aligned_bottom_right() -> None:
    assert_array_equal(mask.causal_mask(2, 4)[0, 0], [[1, 1, 1, 0], [1, 1, 1, 1]])
    assert_array_equal(mask.causal_mask(3, 3)[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert_array_equal(mask.causal_mask(4, 2)[0, 0], [[0, 0], [0, 0], [1, 0], [1, 1]])
    assert mask.causal_mask(2, 4).dtype == bool


@every_dtype
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_CAUSAL_cached_step_equals_the_row_of_the_full_run(dtype: Any, steps: int) -> None:
    part = tree(CONFIG, 4, "multi_head_attention", dtype)
    x = np.random.default_rng(5).normal(size=(2, 6, 5)).astype(dtype)
    full = attention.multi_head_attention(part, CONFIG, x, x, Attending(scores=Scores(causal=True)))
    step = attention.multi_head_attention(part, CONFIG, x[:, -steps:], x, Attending(scores=Scores(causal=True)))
    tolerance = {np.float64: 1e-14, np.float32: 1e-5}.get(dtype, 0.03)
    assert step.dtype == dtype
    assert_allclose(step.astype(float), full[:, -steps:].astype(float), rtol=tolerance, atol=tolerance)


@every_dtype
def test_SOFTMAX_subtracts_the_maximum(dtype: Any) -> None:
    large = 2.0**15  # a power of two and its neighbors, distinct in every dtype but bfloat16
    logits = np.array([large, large, -large], dtype)
    assert_array_equal(softmax(logits).astype(float), [0.5, 0.5, 0])
    assert_array_equal(softmax(-np.abs(logits)).astype(float), np.full(3, np.asarray(1 / 3, dtype).astype(float)))


@half_precision
def test_SOFTMAX_half_precision_takes_float32_logits(dtype: Any) -> None:
    large = 256.0 if dtype == HALF[0] else 2048.0  # not representable in that dtype once 1/2 is added
    query = np.array([2, 1, 0, 0], dtype).reshape(1, 1, 1, 4)
    key = np.array([[large, 1, 0, 0], [large - 1, 0, 0, 0]], dtype).reshape(1, 2, 1, 4)  # logits large + 1/2 and large - 1
    bias = np.array([0.25, 0.0], dtype).reshape(1, 1, 1, 2)
    weights = attention.attention_weights(query, key, bias)
    expected = 1 / (1 + math.exp(-1.75))
    assert_array_equal(weights.ravel(), np.array([expected, 1 - expected], dtype))


@every_dtype
def test_NORM_biased_variance_epsilon_inside_scale_then_offset(dtype: Any) -> None:
    part = {"scale": np.array([1, 2, 3, 4], dtype), "offset": np.array([10, 20, 30, 40], dtype)}
    x = np.array([[[1, 2, 3, 4]]], dtype)  # mean 2.5, variance 1.25; with epsilon 1 the root is 1.5
    expected = np.array([10 - 1, 20 - 2 / 3, 30 + 1, 40 + 4], dtype)
    assert_allclose(normalization.layer_norm(part, x, 1.0)[0, 0].astype(float), expected.astype(float), rtol=2e-7)


def test_NORM_takes_two_passes() -> None:
    part = {"scale": np.ones(4), "offset": np.zeros(4)}
    y = normalization.layer_norm(part, 2.0**40 + np.array([[[1.0, 2, 3, 4]]]), 1.0)
    assert_allclose(y[0, 0], [-1, -1 / 3, 1 / 3, 1], rtol=1e-15)
    assert_array_equal(normalization.layer_norm(part, np.full((1, 1, 4), 1e8), 1e-12), np.zeros((1, 1, 4)))


def test_POSITION_is_interleaved_counts_from_the_first_real_token_and_ends_odd_widths_in_a_sine() -> None:
    pe = positional_encoding.positional_encoding(np.array([[0, 1, 7]]), 4)[0]
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (0, 1, 7)]
    assert_allclose(pe, expected, rtol=1e-14)
    pe = positional_encoding.positional_encoding(np.array([[5]]), 3)[0, 0]
    assert_allclose(pe, [math.sin(5), math.cos(5), math.sin(5 / 10000 ** (2 / 3))], rtol=1e-14)
    assert_allclose(positional_encoding.positional_encoding(np.array([[2]]), 1)[0, 0], [math.sin(2)], rtol=1e-15)
    real = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool)
    expected = [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert_array_equal(positional_encoding.token_positions(real), expected)


@every_dtype
def test_POSITION_has_no_length_limit_and_is_computed_in_float64(dtype: Any) -> None:
    position = np.array([[0, 4097, 1_000_000, 999_999_937]])
    pe = positional_encoding.positional_encoding(position, 6, dtype)
    exact = positional_encoding.positional_encoding(position, 6)
    assert pe.dtype == dtype
    assert_array_equal(pe, exact.astype(dtype))
    angle = position[0, :, None] * np.array([1, 10000 ** (-1 / 3), 10000 ** (-2 / 3)])
    assert_allclose(exact[0, :, 0::2], np.sin(angle), atol=1e-6)
    assert_allclose(exact[0, :, 1::2], np.cos(angle), atol=1e-6)
    assert_allclose(exact[0, :, 0], [math.sin(p) for p in position[0]], rtol=1e-12)


@every_dtype
def test_EMBED_multiplies_by_the_root_of_the_width_where_asked(dtype: Any) -> None:
    table = {"table": np.arange(36).reshape(4, 9).astype(dtype)}
    token = np.array([[2, 0, 3]])
    assert_array_equal(embedding.embedding(table, token, True)[0].astype(float), 3 * np.arange(36.0).reshape(4, 9)[[2, 0, 3]])
    assert_array_equal(embedding.embedding(table, token, False)[0].astype(float), np.arange(36.0).reshape(4, 9)[[2, 0, 3]])


def test_EMBED_scales_by_the_config_and_padding_is_masked_not_zeroed() -> None:
    ids, plain = np.array([[5, 6]]), tree(CONFIG, 17)
    enlarged = plain | {"source_embedding": {"table": plain["source_embedding"]["table"] * 5**0.5}}
    unscaled = CONFIG.replace(scale_embedding=False)
    assert_allclose(transformer.encode(enlarged, unscaled, ids), transformer.encode(plain, CONFIG, ids), rtol=1e-12)
    assert np.abs(transformer.encode(plain, unscaled, ids) - transformer.encode(plain, CONFIG, ids)).max() > 1e-3
    part = tree(CONFIG, 9)
    row = part["source_embedding"]["table"][0]
    assert_array_equal(embedding.embedding(part["source_embedding"], np.array([[0]]), False)[0, 0], row)
    source, target = np.array([[5, 6, 0]]), np.array([[7, 8]])
    logits = transformer.transformer(part, CONFIG, source, target)
    assert_allclose(logits, transformer.transformer(part, CONFIG, source[:, :2], target), rtol=1e-12)
    kept = transformer.transformer(part, CONFIG, Text(source, np.ones((1, 3), bool)), target)
    assert np.abs(kept - logits).max() > 1e-3


def constant_layer(attention_output: np.ndarray, feed_forward_output: np.ndarray) -> dict[str, Any]:
    """Returns an encoder layer whose sub-layers return those constants."""
    flat = {name: np.zeros(shape) for name, shape in parameters.shapes(CONFIG, "encoder_layer").items()}
    flat |= {name: np.ones(5) for name in flat if name.endswith("scale")}
    flat |= {"self_attention.output.bias": attention_output, "feed_forward.output.bias": feed_forward_output}
    return parameters.nest(flat)


def norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.epsilon)


def test_RESIDUAL_post_norm_as_the_paper_and_pre_norm_by_config() -> None:
    x, a, f = np.random.default_rng(10).normal(size=(3, 2, 3, 5)).astype(float)
    a, f = a[0, 0], f[0, 0]
    post = layers.encoder_layer(constant_layer(a, f), CONFIG, x)
    assert_allclose(post, norm(norm(x + a) + f), rtol=1e-12)
    pre = layers.encoder_layer(constant_layer(a, f), CONFIG.replace(norm_placement="pre"), x)
    assert_allclose(pre, x + a + f, rtol=1e-14)


@every_dtype
def test_DROPOUT_is_inverted_forward_and_backward_and_the_identity_in_evaluation(dtype: Any) -> None:
    x = np.array([1, -2, 3, 4], dtype)
    assert_array_equal(dropout.dropout(x, np.array([True, False, True, False]), 0.5).astype(float), [2, 0, 6, 0])
    assert_array_equal(dropout.dropout(x, None, 0.5), x)
    assert dropout.dropout(x, np.ones(4, bool), 0.75).dtype == dtype
    g = np.array([1, -2, 3, 4], dtype)
    gradient = dropout.dropout_vjp(np.ones(4, dtype), np.array([True, False, True, False]), 0.5, cotangent=g)["x"]
    assert_array_equal(gradient.astype(float), [2, 0, 6, 0])
    assert_array_equal(dropout.dropout_vjp(np.ones(4, dtype), None, 0.5, cotangent=g)["x"], g)


def test_DROPOUT_of_the_weights_comes_after_their_softmax() -> None:
    keep = np.array([True, False, True, True])[None, None, None]
    output, weights = attend(keys=4, mask_bhts=np.array([True, True, True, False])[None, None, None])
    heads = Heads(np.zeros((1, 1, 1, 2)), np.ones((1, 4, 1, 2)), np.eye(4)[None, :, None])
    dropped = attention.scaled_dot_product_attention(heads, np.array([0, 0, 0, -np.inf])[None, None, None], drop=Drop(keep, 0.25))
    assert_allclose(weights.ravel(), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-15)
    assert_allclose(output.ravel(), weights.ravel(), rtol=1e-15)
    assert_allclose(dropped.ravel(), [4 / 9, 0, 4 / 9, 0], rtol=1e-15)
    assert_array_equal(attention.scaled_dot_product_attention(heads, drop=Drop(None, 0.25)).ravel(), [0.25] * 4)


DROPOUT_SITES = {
    "encoder.embedding_dropout": (1, 3, 5),
    "encoder.layers.1.self_attention_dropout": (1, 3, 5),
    "encoder.layers.0.feed_forward_dropout": (1, 3, 5),
    "encoder.layers.1.self_attention.weights_dropout": (1, 2, 3, 3),
    "encoder.layers.0.feed_forward.hidden_dropout": (1, 3, 64),
    "decoder.embedding_dropout": (1, 2, 5),
    "decoder.layers.0.self_attention_dropout": (1, 2, 5),
    "decoder.layers.1.cross_attention_dropout": (1, 2, 5),
    "decoder.layers.1.feed_forward_dropout": (1, 2, 5),
    "decoder.layers.1.self_attention.weights_dropout": (1, 2, 2, 2),
    "decoder.layers.0.cross_attention.weights_dropout": (1, 2, 2, 3),
    "decoder.layers.0.feed_forward.hidden_dropout": (1, 2, 64),
}


def test_DROPOUT_sites_are_declared_with_their_shapes() -> None:
    config = CONFIG.replace(dropout_rate=0.1, attention_dropout_rate=0.1, hidden_dropout_rate=0.1)
    declared = sites.shapes(config, 1, 3, 2)
    assert declared.items() >= DROPOUT_SITES.items()
    alone = sites.shapes(config.replace(decoder_layers=0), 1, 3, 2)
    assert alone == {site: shape for site, shape in declared.items() if site.startswith("encoder")}
    assert {site.replace("layers.1", "layers.0") for site in declared} == {site.replace("layers.1", "layers.0") for site in DROPOUT_SITES}


def test_DROPOUT_drops_the_sum_of_embedding_and_position_and_the_sublayer_before_the_sum() -> None:
    x, a, f = np.random.default_rng(15).normal(size=(3, 2, 3, 5))
    a, f = a[0, 0], f[0, 0]
    keep = {"self_attention_dropout": np.arange(5) % 2 == 0, "feed_forward_dropout": np.zeros(5, bool)}
    keep = {name: value[None, None] for name, value in keep.items()}
    config = CONFIG.replace(dropout_rate=0.2)
    expected = norm(norm(x + a / 0.8 * keep["self_attention_dropout"]))
    assert_allclose(layers.encoder_layer(constant_layer(a, f), config, x, keep=keep), expected, rtol=1e-12)
    pre = layers.encoder_layer(constant_layer(a, f), config.replace(norm_placement="pre"), x, keep=keep)
    assert_allclose(pre, x + a / 0.8 * keep["self_attention_dropout"], rtol=1e-12)
    part, ids = tree(config, 16), np.array([[5, 6]])
    nothing = {"encoder": {"embedding_dropout": np.zeros((1, 2, 5), bool)}}
    zeros = stacks.encoder(part["encoder"], config, np.zeros((1, 2, 5)))
    assert_array_equal(transformer.encode(part, config, ids, keep=nothing), zeros)


def test_INIT_xavier_uniform_with_the_fans_of_the_unfused_projection() -> None:
    config = preset("paper_base", source_vocabulary=3000, target_vocabulary=3000, key_value_heads=2, value_size=32, share_embeddings=False,
                    tie_logits=False, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True)  # fmt: skip
    fresh = parameters.initialise(config, 0)
    fans = {"query": (512, 512), "key": (512, 128), "value": (512, 64), "output": (256, 512)}
    expected = {f"decoder.layers.0.cross_attention.{name}.kernel": pair for name, pair in fans.items()}
    expected |= {"encoder.layers.0.feed_forward.hidden.kernel": (512, 2048), "encoder.layers.0.feed_forward.output.kernel": (2048, 512)}
    expected["logits.kernel"] = (512, 3000)
    for name, pair in expected.items():
        limit = math.sqrt(6 / sum(pair))
        assert 0.999 * limit < np.abs(fresh[name]).max() <= limit, name
        assert fresh[name].std() == pytest.approx(limit / math.sqrt(3), rel=0.01), name
        assert abs(fresh[name].mean()) < 0.02 * limit, name


def test_INIT_tables_normal_biases_zero_scales_one_all_by_the_seed() -> None:
    config = preset("nn_transformer", source_vocabulary=2000, target_vocabulary=2000, encoder_layers=1, decoder_layers=1)
    fresh = parameters.initialise(config, 1, np.float32)
    table = fresh["target_embedding.table"].astype(float)
    assert table.std() == pytest.approx(512**-0.5, rel=0.01)
    assert (np.abs(table) < 512**-0.5).mean() == pytest.approx(0.6827, abs=0.005)  # a normal distribution's share within 1 sigma
    assert all((value == (1 if name.endswith("scale") else 0)).all() for name, value in fresh.items() if value.ndim == 1 or "bias" in name)
    assert {value.dtype for value in fresh.values()} == {np.dtype(np.float32)}
    first, same, other = (parameters.initialise(preset("tiny"), seed) for seed in (3, 3, 4))
    assert all((first[name] == same[name]).all() for name in first)
    assert all((first[name] != other[name]).any() for name in first if name.endswith(("kernel", "table")))


@pytest.mark.parametrize("name", ["tiny", "nn_transformer"])
def test_INIT_every_parameter_learns_from_the_first_step(name: str) -> None:
    """Except a key's bias, which adds the same number to all logits of a query and so has no effect."""
    config = preset(name, source_vocabulary=7, target_vocabulary=7, model_width=6, heads=2, key_value_heads=2, key_size=3, value_size=3,
                    feed_forward_width=9, encoder_layers=2, decoder_layers=2)  # fmt: skip
    ids = np.arange(12).reshape(3, 4) % 7
    fresh = parameters.nest(parameters.initialise(config, 2))
    gradients = transformer.training_loss_vjp(fresh, config, ids, ids[:, ::-1], cotangent=np.ones(()))["parameters"]
    for parameter, gradient in parameters.flatten(gradients).items():
        assert (np.abs(gradient).max() > 1e-12) != parameter.endswith("key.bias"), parameter


UNIFORM = np.zeros((1, 1, 4))  # every token has probability 1/4


def epsilon(dtype: Any) -> float:
    """Returns the relative distance of two neighbors; rounding inputs, a few operations and the result costs a small multiple of it."""
    return float(ml_dtypes.finfo(dtype).eps)


@every_dtype
def test_SMOOTH_spreads_over_all_tokens_the_true_and_the_padding_one(dtype: Any) -> None:
    """q is 0.8 + 0.2 / 4 for the label and 0.2 / 4 for the other three; the gradient is p - q."""
    gradient = loss.cross_entropy_vjp(UNIFORM.astype(dtype), np.array([[2]]), None, 0.2, cotangent=np.ones((), dtype))["logits_btv"]
    assert_allclose(gradient.ravel().astype(float), [0.2, 0.2, -0.6, 0.2], rtol=4 * epsilon(gradient.dtype))
    logits = np.log(np.array([[[1, 2, 4, 8]]])).astype(dtype)
    p = np.array([1, 2, 4, 8]) / 15
    expected = -(0.05 * np.log(p).sum() + 0.8 * math.log(p[2]))
    assert_allclose(float(loss.cross_entropy(logits, np.array([[2]]), None, 0.2)), expected, rtol=4 * epsilon(logits.dtype))


def test_SMOOTH_is_the_mean_over_the_real_labels_of_the_whole_batch() -> None:
    """Rows of one and of three labels: the loss is the mean of four numbers, not of two means."""
    rng = np.random.default_rng(19)
    logits, label = rng.normal(size=(2, 3, 5)), np.array([[2, 0, 0], [1, 3, 4]])
    each = [float(loss.cross_entropy(logits[b : b + 1, t : t + 1], label[b : b + 1, t : t + 1], None, 0.1)) for b, t in np.argwhere(label)]
    assert_allclose(loss.cross_entropy(logits, label, label != 0, 0.1), np.mean(each), rtol=1e-14)
    parts = [loss.cross_entropy(logits[[row]], label[[row]], label[[row]] != 0, 0.1, total=4) for row in (0, 1)]
    assert_allclose(sum(parts), np.mean(each), rtol=1e-14)
    assert loss.cross_entropy(logits, 0 * label, np.zeros((2, 3), bool), 0.1) == 0


def adam(step: int = 1, g: float = 1.0, **changes: Any) -> float:
    """Returns the parameter after one step from 0.5 with moments 0, at rate 1."""
    hyper = {"learning_rate": 1.0, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1.0, "weight_decay": 0.0} | changes
    name = hyper.pop("name", "kernel")
    p, g_tree, m, v = ({name: np.array([x])} for x in (0.5, g, 0.0, 0.0))
    return float(optimizer.adam(p, g_tree, m, v, step, **hyper)["parameters"][name][0])


def test_ADAM_adds_epsilon_to_the_corrected_root_of_the_moments_of_that_step() -> None:
    """g = 3: m_hat = 3, v_hat = 9. With epsilon inside the root the step is 3 / sqrt(10), before the correction 3 / (3 + 10)."""
    assert_allclose(adam(g=3.0), 0.5 - 3 / (3 + 1), rtol=1e-14)
    expected = 0.5 - (0.1 / (1 - 0.9**3)) / (math.sqrt(0.01 / (1 - 0.99**3)) + 1)
    assert_allclose(adam(step=3), expected, rtol=1e-14)


def test_ADAM_decay_is_decoupled_and_spares_biases_and_norms() -> None:
    """At rate 0.5, half of 1/2 + 0.1 * 0.5 is subtracted; if the decay passed through the moments it would be 1.05 / 2.05."""
    assert_allclose(adam(learning_rate=0.5, weight_decay=0.1), 0.5 - 0.5 * (0.5 + 0.05), rtol=1e-14)
    for name, decays in {"kernel": True, "table": True, "bias": False, "scale": False, "offset": False}.items():
        assert (adam(weight_decay=0.1, name=name) != adam(name=name)) == decays


def test_NOAM_counts_from_1_rises_linearly_falls_with_the_root_and_is_cast_from_float64() -> None:
    rate = schedule.noam(np.array([1, 50, 100, 400]), 64, 100)  # grows to 1/8 at n = 100, then falls as 1/sqrt(n)
    assert_allclose(rate, np.array([0.001, 0.05, 0.1, 0.05]) / 8, rtol=1e-14)
    with pytest.raises(ValueError, match=r"1; got 0$"):
        schedule.noam(0, 64, 100)
    steps = np.array([1, 3, 16_777_217])  # the last step is not representable in float32
    assert_array_equal(schedule.noam(steps, 512, 4000, np.float32), schedule.noam(steps, 512, 4000).astype(np.float32))
    assert (schedule.noam(7, 512, 4000, np.float32).dtype, schedule.noam(7, 512, 4000).shape) == (np.float32, ())
