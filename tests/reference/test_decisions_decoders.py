"""The decisions on decoders since Llama (docs/decisions.md), by id: manually computed numbers, closed forms, and invariances."""

import math
from typing import Any

import flat
import ml_dtypes
import numpy as np
import pytest
from messages import mentions
from numpy.testing import assert_allclose, assert_array_equal
from strategies import draw_parameters, tree

from reference_numpy import (
    TransformerConfig,
    attention,
    cache,
    decoding,
    embedding,
    feed_forward,
    inputs,
    layers,
    mask,
    normalization,
    parameters,
    positional_encoding,
    preset,
    rotary,
    softmax,
    stacks,
    transformer,
)
from reference_numpy.config import PARALLEL
from reference_numpy.rotary_scaling import RotaryScaling
from reference_numpy.scores import Scores
from reference_numpy.values import Attending, Heads, Memory

SIZES: dict[str, Any] = {"source_vocabulary": 9, "target_vocabulary": 9, "model_width": 6, "heads": 4, "key_value_heads": 2, "key_size": 4,
                         "value_size": 3, "feed_forward_width": 5, "decoder_layers": 1, "padding_id": None}  # fmt: skip
LLAMA = preset("llama2_7b", **SIZES)
GEMMA = preset("gemma2_2b", **SIZES | {"decoder_layers": 2}, window=3)
LONG = RotaryScaling(kind="longrope", original_length=6, short_factors=(1.0, 1.5), long_factors=(2.0, 5.0), attention_factor=1.25)


def test_ROTARY_turns_pairs_by_position_times_a_power_of_the_base() -> None:
    """In Su et al.'s own form with complex numbers; rotating halves pairs the same numbers at other places."""
    rng = np.random.default_rng(0)
    x, position = rng.normal(size=(2, 3, 4, 4)), np.array([[0, 5, 900], [7, 7, 1]])
    turned = np.exp(1j * position[..., None] * np.array([1, 10000.0**-0.5]))[:, :, None]
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turned
    expected = np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)
    interleaved = LLAMA.replace(rotary_layout="interleaved")
    assert_allclose(rotary.rotary_embedding(x, position, interleaved), expected, rtol=1e-12)
    order = [0, 2, 1, 3]
    assert_allclose(rotary.rotary_embedding(x[..., order], position, LLAMA), expected[..., order], rtol=1e-12)
    part = LLAMA.replace(rotary_fraction=0.5)
    y = rotary.rotary_embedding(x, position, part)
    assert_array_equal(y[..., 2:], x[..., 2:])
    assert_allclose(y[..., 0], x[..., 0] * np.cos(position)[..., None] - x[..., 1] * np.sin(position)[..., None], rtol=1e-12)


def attended(part: Any, config: TransformerConfig, x: np.ndarray, position: np.ndarray | None = None, layer: int = 0) -> np.ndarray:
    """Computes the self-attention of a decoder layer."""
    return attention.multi_head_attention(part, config, x, x, stacks.attending(config, layer, x, None, position, causal=True))


def test_ROTARY_scores_depend_on_distances_alone_and_values_do_not_rotate() -> None:
    rng = np.random.default_rng(1)
    part, x = parameters.nest(draw_parameters(LLAMA, 1, "multi_head_attention")), rng.normal(size=(1, 5, 6))
    here = attended(part, LLAMA, x, np.arange(5)[None])
    assert_allclose(attended(part, LLAMA, x, np.arange(5)[None] + 300), here, rtol=1e-9)
    assert_array_equal(attended(part, LLAMA, x), here)
    one = attended(part, LLAMA, x[:, :1], np.array([[77]]))
    assert_allclose(one, attention.multi_head_attention(part, LLAMA, x[:, :1], x[:, :1]), rtol=1e-12)
    crossed = layers.cross_attention({"cross_attention": part}, LLAMA, x, Memory(x[:, :3]))
    assert_array_equal(crossed, attention.multi_head_attention(part, LLAMA, x, x[:, :3]))
    assert_array_equal(crossed, flat.multi_head_attention(part, x, x[:, :3], config=LLAMA, layer=None))
    with pytest.raises(ValueError, match=r"rotary positions.*self-attention.*lengths 5 and 3"):
        attention.multi_head_attention(part, LLAMA, x, x[:, :3], Attending(rotation=stacks.rotation(LLAMA, 0, x)))


def test_ROTARY_scalings_change_the_frequencies_as_published() -> None:
    """llama3: published constants for head size 128; yarn: the bounds of the paper's code; dynamic: the last pair as with interpolation."""
    plain = rotary.rotary_frequencies(128, 5e5, RotaryScaling(), 1)
    assert_allclose(plain, 5e5 ** (-np.arange(64) / 64), rtol=1e-12)
    scaling = RotaryScaling(kind="llama3", factor=8.0, original_length=8192, low_frequency_factor=1.0, high_frequency_factor=4.0)
    found, wave = rotary.rotary_frequencies(128, 5e5, scaling, 1), 2 * math.pi / plain
    assert_allclose(found[wave < 2048], plain[wave < 2048], rtol=1e-12)
    assert_allclose(found[wave > 8192], plain[wave > 8192] / 8, rtol=1e-12)
    smooth = (8192 / wave - 1) / 3
    between = (wave >= 2048) & (wave <= 8192)
    assert between.sum() > 3
    assert_allclose(found[between], ((1 - smooth) * plain / 8 + smooth * plain)[between], rtol=1e-12)
    linear = rotary.rotary_frequencies(128, 5e5, RotaryScaling(kind="linear", factor=4.0), 1)
    assert_allclose(linear, plain / 4, rtol=1e-12)
    dynamic = RotaryScaling(kind="dynamic", factor=2.0, original_length=100)
    assert_array_equal(rotary.rotary_frequencies(128, 5e5, dynamic, 100), plain)
    longer = rotary.rotary_frequencies(128, 5e5, dynamic, 200)
    assert longer[0] == 1
    assert_allclose(plain[-1] / longer[-1], 3, rtol=1e-9)  # 2 * 200 / 100 - 1
    yarn = RotaryScaling(kind="yarn", factor=4.0, original_length=4096, beta_fast=32.0, beta_slow=1.0, truncate=True, attention_factor=1.1)
    share = 1 - (rotary.rotary_frequencies(128, 1e4, yarn, 1) / rotary.rotary_frequencies(128, 1e4, RotaryScaling(), 1) - 0.25) / 0.75
    assert_allclose(share, np.clip((np.arange(64) - 20) / (46 - 20), 0, 1), atol=1e-12)
    for length, factors in ((6, LONG.short_factors), (7, LONG.long_factors)):
        assert_allclose(rotary.rotary_frequencies(4, 1e4, LONG, length), np.array([1, 0.01]) / factors, rtol=1e-12)
    x = np.random.default_rng(2).normal(size=(1, 2, 4, 4))
    y = rotary.rotary_embedding(x, np.array([[0, 0]]), LLAMA.replace(rotary_scaling=LONG))
    assert_allclose(y, 1.25 * x, rtol=1e-12)


def test_ROTARY_base_and_scaling_are_of_the_kind_of_layer_and_some_layers_do_not_rotate() -> None:
    config = GEMMA.replace(local_rotary_base=100.0, rotary_scaling={"kind": "linear", "factor": 2.0}, rotary_pattern=(True, True, False))
    kinds = [config.layer_kind(layer) for layer in range(6)]
    assert [kind.window for kind in kinds] == [3, 0, 3, 0, 3, 0]
    assert [kind.base for kind in kinds] == [100.0, 10000.0] * 3
    assert [kind.scaling.kind for kind in kinds] == ["none", "linear"] * 3
    assert [kind.rotary for kind in kinds] == [True, True, False] * 2
    part, x = parameters.nest(draw_parameters(config, 1, "multi_head_attention")), np.random.default_rng(4).normal(size=(1, 2, 6))
    still = attended(part, config.replace(positions="none"), x, layer=2)
    assert_array_equal(attended(part, config, x, layer=2), still)
    assert np.abs(attended(part, config, x, layer=0) - still).max() > 1e-6


def test_ROTARY_a_search_reads_its_target_anew_where_it_grows_beyond_the_original_length() -> None:
    config, strategy = (
        LLAMA.replace(rotary_scaling=LONG, decoder_layers=2),
        {"start_id": None, "end_id": 8, "max_new_tokens": 7, "min_new_tokens": 6},
    )
    part, prefix = tree(config, 5), np.array([[1, 2, 3, 4]])
    found = decoding.greedy_search(part, config, None, strategy, prefix)["token_bn"]
    target = prefix
    for token in found[0, :6]:
        logits = transformer.decode(part, config, target)[0, -1]
        assert token == logits[:8].argmax()
        target = np.append(target, [[token]], axis=1)
    beams = decoding.beam_search(part, config, None, strategy | {"beam_size": 2, "alpha": 0.0, "end_id": 8}, prefix)
    assert beams["token_bwn"].shape == (1, 1, 7)


def test_WINDOW_counts_the_query_itself_and_lies_on_both_sides_without_causality() -> None:
    assert mask.window_mask(3, 3, 2)[0, 0].tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert mask.window_mask(1, 5, 3)[0, 0].tolist() == [[False, False, True, True, True]]
    with pytest.raises(ValueError, match=r"window.*1; got 0"):
        mask.window_mask(1, 1, 0)
    part, x = parameters.nest(draw_parameters(GEMMA, 1, "decoder")), np.random.default_rng(6).normal(size=(1, 9, 6))
    part = {**part, "layers": {"0": part["layers"]["0"]}}
    one = GEMMA.replace(decoder_layers=1, layer_pattern=("local",))
    moved = x.copy()
    moved[:, 2] += 1
    changed = np.abs(stacks.decoder(part, one, moved) - stacks.decoder(part, one, x)).max(axis=-1)[0] > 1e-12
    assert changed.tolist() == [False, False, True, True, True, False, False, False, False]


def test_WINDOW_a_cache_keeps_no_more_than_the_window() -> None:
    part, target = tree(GEMMA, 7), np.random.default_rng(7).integers(0, 9, (2, 9))
    kept = cache.start_cache(part, GEMMA, None, batch=2)
    for step in np.split(target, [4, 5, 7], axis=1):
        _, kept = cache.decode_step(part, GEMMA, step, kept)
    sizes = [[held.shape[1] for held in layer["self_attention"]] for layer in kept.layers]
    assert sizes == [[3, 3], [9, 9]]


def test_WINDOW_keys_and_values_are_appended_in_order_and_the_last_of_them_are_kept() -> None:
    key, value = np.arange(24.0).reshape(2, 3, 2, 2), np.arange(36.0).reshape(2, 3, 2, 3)
    read = cache.KeyValues(key[:, :1], value[:, :1])
    every = read.update(key[:, 1:], value[:, 1:])
    assert_array_equal(every.key_bsgk, key)
    assert_array_equal(every.value_bsge, value)
    assert_array_equal(read.key_bsgk, key[:, :1])
    for window, first in ((2, 1), (3, 0), (4, 0), (0, 0)):
        last = every.last(window)
        assert_array_equal(last.key_bsgk, key[:, first:])
        assert_array_equal(last.value_bsge, value[:, first:])


def test_SOFTCAP_is_between_scale_and_mask_and_bends_the_logits_of_tokens() -> None:
    assert_allclose(softmax.soft_cap(np.array([-1e9, -1.0, 0.0, 1.0, 1e9]), 2.0), [-2, -2 * math.tanh(0.5), 0, 2 * math.tanh(0.5), 2])
    with pytest.raises(ValueError, match=r"cap.*0; got 0"):
        softmax.soft_cap(np.zeros(1), 0)
    rng = np.random.default_rng(8)
    query, key, _ = (rng.normal(size=(1, 3, 2, 4)) for _ in range(3))
    hidden, bias = np.array([[True, True, False]])[None, None], rng.normal(size=(1, 2, 3, 3))
    logits = 1.5 * np.tanh(0.7 * np.einsum("bthk,bshk->bhts", query, key) / 1.5) + bias
    weights = softmax.softmax(logits, hidden)
    found = attention.attention_weights(query, key, np.where(hidden, bias, -np.inf), Scores(scale=0.7, cap=1.5))
    assert_allclose(found, weights, rtol=1e-12)
    part, x = {"kernel": rng.normal(size=(4, 5)), "bias": rng.normal(size=5)}, rng.normal(size=(1, 3, 4))
    plain = embedding.logits(part, x)
    assert_allclose(embedding.logits(part, x, 0.3, 2.0), 2 * np.tanh(0.3 * plain / 2), rtol=1e-12)


def test_SCALE_is_a_number_of_its_own() -> None:
    rng = np.random.default_rng(9)
    heads = Heads(*(rng.normal(size=(1, 3, 2, 4)) for _ in range(3)))
    plain = attention.scaled_dot_product_attention(heads)
    assert_allclose(attention.scaled_dot_product_attention(heads, scores=Scores(scale=0.5)), plain, rtol=1e-12)
    assert np.abs(attention.scaled_dot_product_attention(heads, scores=Scores(scale=1.0)) - plain).max() > 0.01


@pytest.mark.parametrize("kind", ["head", "width"])
def test_QKNORM_norms_each_head_or_all_before_the_rotation(kind: str) -> None:
    config = LLAMA.replace(query_key_norm=kind)
    part, x = parameters.nest(draw_parameters(config, 2, "multi_head_attention")), np.random.default_rng(10).normal(size=(2, 3, 6))
    raw = np.einsum("btd,dhk->bthk", x, part["query"]["kernel"])
    axes = (3,) if kind == "head" else (2, 3)
    normed = raw / np.sqrt((raw**2).mean(axis=axes, keepdims=True) + config.epsilon) * part["query_norm"]["scale"]
    assert_allclose(attention.queries(part, config, x), normed, rtol=1e-12)
    query, *_ = attention.project(part, config, x, x, stacks.rotation(config, 0, x, np.arange(3)[None] + 5))
    assert_allclose(query, rotary.rotary_embedding(normed, np.arange(3)[None] + 5, config), rtol=1e-12)
    assert part["key_norm"]["scale"].shape == ((4,) if kind == "head" else (2, 4))


def test_QKNORM_each_head_may_have_its_own_scale() -> None:
    """As a norm with one scale for each head alone; the norms' offset follows its own field."""
    config = LLAMA.replace(query_key_norm="each_head", norm="layer", norm_offset=True, query_key_norm_offset=False)
    part, x = parameters.nest(draw_parameters(config, 2, "multi_head_attention")), np.random.default_rng(10).normal(size=(2, 3, 6))
    assert [*part["key_norm"]] == ["scale"] and part["key_norm"]["scale"].shape == (config.key_value_heads, config.key_size)
    raw = np.einsum("btd,dgk->btgk", x, part["key"]["kernel"])
    single = config.replace(query_key_norm="head")
    alone = [{"key_norm": {"scale": part["key_norm"]["scale"][head]}} for head in range(raw.shape[2])]
    heads = [attention.query_key_norm(own, single, "key", raw[:, :, [head]]) for head, own in enumerate(alone)]
    assert_allclose(attention.query_key_norm(part, config, "key", raw), np.concatenate(heads, 2), rtol=1e-12)
    gradient, norms = attention.query_key_norm_vjp(part, config, "key", raw, cotangent=np.sin(raw))
    each = [
        attention.query_key_norm_vjp(own, single, "key", raw[:, :, [head]], cotangent=np.sin(raw[:, :, [head]]))
        for head, own in enumerate(alone)
    ]
    assert_allclose(gradient, np.concatenate([one for one, _ in each], 2), rtol=1e-9, atol=1e-12)
    assert_allclose(norms["key_norm"]["scale"], np.stack([own["key_norm"]["scale"] for _, own in each]), rtol=1e-9, atol=1e-12)


def test_NORM_without_a_scale_has_no_parameters_and_multiplies_by_1() -> None:
    config = LLAMA.replace(norm="layer", norm_scale=False, norm_one_plus_scale=True, query_key_norm="head")
    names = parameters.axes(config)
    assert not any("norm" in name for name in names) and any(".norm" in name or "_norm" in name for name in parameters.axes(LLAMA))
    x = np.random.default_rng(4).normal(size=(2, 3, 6))
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.epsilon)
    assert_allclose(normalization.norm({}, config, x), expected, rtol=1e-12)
    gradients = normalization.norm_vjp({}, config, x, cotangent=np.ones_like(x) + x)
    assert gradients["parameters"] == {}
    one = {"scale": np.zeros(6)}
    assert_array_equal(gradients["x_btd"], normalization.norm_vjp(one, LLAMA.replace(norm="layer", norm_one_plus_scale=True), x,
                                                                  cotangent=np.ones_like(x) + x)["x_btd"])  # fmt: skip
    with pytest.raises(ValueError, match=r"norm_scale=False"):
        config.replace(norm_placement="pre", first_norm=False)


@pytest.mark.parametrize("after", [False, True])
def test_CLIP_bounds_values_and_what_rotates(after: bool) -> None:
    config = LLAMA.replace(query_key_norm="width", query_key_value_clip=0.6, query_key_norm_after_rotation=after)
    part, x = parameters.nest(draw_parameters(config, 2, "multi_head_attention")), np.random.default_rng(10).normal(size=(2, 3, 6))
    place = np.arange(3)[None] + 5

    def normed(raw: np.ndarray) -> np.ndarray:
        scaled = raw / np.sqrt((raw**2).mean(axis=(2, 3), keepdims=True) + config.epsilon)
        return scaled * part["key_norm"]["scale"].reshape(raw.shape[2:])

    _, key, value, _ = attention.project(part, config, x, x, stacks.rotation(config, 0, x, place))
    raw, raw_value = (np.einsum("btd,dgk->btgk", x, part[name]["kernel"]) for name in ("key", "value"))
    turned = rotary.rotary_embedding(np.clip(raw if after else normed(raw), -0.6, 0.6), place, config)
    assert_allclose(key, normed(turned) if after else turned, rtol=1e-12)
    assert_allclose(value, np.clip(raw_value, -0.6, 0.6), rtol=1e-12, atol=1e-15)
    assert (np.abs(raw_value) > 0.6).any() and (np.abs(raw_value) < 0.6).any()
    slope = attention.clipped_vjp(np.array([-0.7, -0.6, 0.0, 0.6, 0.7]), 0.6, cotangent=np.full(5, 3.0))
    assert_array_equal(slope, [0, 3, 3, 3, 0])


def test_QKNORM_norms_after_the_rotation_if_the_config_says_so() -> None:
    config = LLAMA.replace(query_key_norm="head", query_key_norm_after_rotation=True)
    part, x = parameters.nest(draw_parameters(config, 2, "multi_head_attention")), np.random.default_rng(10).normal(size=(2, 3, 6))
    _, key, *_ = attention.project(part, config, x, x, stacks.rotation(config, 0, x, np.arange(3)[None] + 5))
    turned = rotary.rotary_embedding(np.einsum("btd,dgk->btgk", x, part["key"]["kernel"]), np.arange(3)[None] + 5, config)
    normed = turned / np.sqrt((turned**2).mean(axis=3, keepdims=True) + config.epsilon) * part["key_norm"]["scale"]
    assert_allclose(key, normed, rtol=1e-12)
    gradients = attention.multi_head_attention_vjp(part, config, x, x, cotangent=np.ones_like(x))
    before = attention.multi_head_attention_vjp(part, config.replace(query_key_norm_after_rotation=False), x, x, cotangent=np.ones_like(x))
    assert_array_equal(gradients["query_btd"], before["query_btd"])  # without a rotation there is no order


def test_NORM_rms_keeps_the_mean_and_scales_before_or_after_the_cast() -> None:
    x, part = np.array([[[3.0, 4.0, 0.0, 0.0]]]), {"scale": np.array([1.0, 2.0, 1.0, 1.0])}
    assert_allclose(normalization.rms_norm(part, x, 1e-12), [[[1.2, 3.2, 0, 0]]], rtol=1e-11)
    assert_allclose(normalization.rms_norm(part, x, 1e-12, True), [[[2.4, 4.8, 0, 0]]], rtol=1e-11)
    assert_array_equal(normalization.rms_norm(part, np.zeros((1, 1, 4)), 1e-6), np.zeros((1, 1, 4)))
    rng, half = np.random.default_rng(11), ml_dtypes.bfloat16
    x, part = rng.normal(size=(1, 50, 4)).astype(half), {"scale": rng.normal(size=4).astype(half)}
    exact = x.astype(np.float32) / np.sqrt((x.astype(np.float32) ** 2).mean(-1, keepdims=True) + np.float32(1e-6))
    before = (exact.astype(half) * part["scale"]).astype(half)
    after = (exact * part["scale"].astype(np.float32)).astype(half)
    assert (before != after).any()
    assert_array_equal(normalization.rms_norm(part, x, 1e-6, cast_before_scale=True), before)
    assert_array_equal(normalization.rms_norm(part, x, 1e-6), after)


def test_GATE_is_the_only_part_with_an_activation() -> None:
    config = LLAMA.replace(feed_forward_bias=True)
    part, x = parameters.nest(draw_parameters(config, 3, "feed_forward")), np.random.default_rng(12).normal(size=(1, 3, 6))
    gate, hidden = (x @ part[name]["kernel"] + part[name]["bias"] for name in ("gate", "hidden"))
    expected = (gate / (1 + np.exp(-gate)) * hidden) @ part["output"]["kernel"] + part["output"]["bias"]
    assert_allclose(feed_forward.feed_forward(part, x, "silu"), expected, rtol=1e-12)


def test_RESIDUAL_sandwich_and_after_norm_what_is_added() -> None:
    x = np.random.default_rng(13).normal(size=(1, 3, 6))
    for placement in ("sandwich", "after"):
        config = LLAMA.replace(norm_placement=placement, positions="none")
        part = parameters.nest(draw_parameters(config, 4, "decoder_layer"))

        def normed(name: str, y: np.ndarray, part: Any = part, config: Any = config) -> np.ndarray:
            return normalization.norm(part[name], config, y)

        expected = x
        for name in ("self_attention", "feed_forward"):
            y = normed(f"{name}_norm", expected) if placement == "sandwich" else expected
            if name == "self_attention":
                y = attention.multi_head_attention(part[name], config, y, y, Attending(scores=Scores(causal=True)))
            else:
                y = feed_forward.feed_forward(part[name], y, "silu")
            expected = expected + normed(f"{name}_output_norm" if placement == "sandwich" else f"{name}_norm", y)
        assert_allclose(layers.decoder_layer(part, config, x), expected, rtol=1e-12)


@pytest.mark.parametrize("placement", PARALLEL)
def test_RESIDUAL_parallel_sublayers_read_the_same_vectors(placement: str) -> None:
    config, x = LLAMA.replace(norm_placement=placement, positions="none"), np.random.default_rng(13).normal(size=(1, 3, 6))
    part = parameters.nest(draw_parameters(config, 4, "decoder_layer"))
    shared = placement == "parallel_shared"
    assert ("feed_forward_norm" in part) != shared
    first = normalization.norm(part["self_attention_norm"], config, x)
    second = first if shared else normalization.norm(part["feed_forward_norm"], config, x)
    expected = x + feed_forward.feed_forward(part["feed_forward"], second, "silu")
    attending = Attending(scores=Scores(causal=True))
    expected += attention.multi_head_attention(part["self_attention"], config, first, first, attending)
    assert_allclose(layers.decoder_layer(part, config, x), expected, rtol=1e-12)
    with pytest.raises(ValueError) as error:
        config.replace(encoder_layers=1)
    assert mentions(str(error.value), f"norm_placement={placement} … encoder_layers=1")


def test_EMBED_rounds_its_scale_to_the_dtype_of_the_table() -> None:
    half = ml_dtypes.bfloat16
    table = {"table": np.arange(1, 3073, dtype=np.float32).astype(half)[None]}
    token = np.zeros((1, 1), int)
    rounded = embedding.embedding(table, token, True, True)[0, 0].astype(float)
    assert_array_equal(rounded, (table["table"][0].astype(np.float32) * np.float32(55.5)).astype(half).astype(float))
    exact = embedding.embedding(table, token, True)[0, 0].astype(float)
    assert (rounded != exact).any()


def test_POSITION_none_adds_nothing_and_halves_have_the_sines_first() -> None:
    config = LLAMA.replace(positions="none")
    part, ids = tree(config, 14), np.array([[3, 3, 3]])
    logits = transformer.decode(part, config, ids)
    assert_allclose(logits, np.broadcast_to(logits[:, :1], logits.shape), rtol=1e-12)
    position = np.array([[0, 4]])
    found = positional_encoding.positional_encoding(position, 5, layout="halves")
    assert_array_equal(found, positional_encoding.positional_encoding(position, 5)[..., [0, 2, 4, 1, 3]])
    found = positional_encoding.positional_encoding(np.array([[3]]), 7, layout="tensor2tensor")[0, 0]
    angles = [3.0, 0.03, 0.0003]  # frequencies 1, 1/100 and 1/10000
    assert_allclose(found, [*map(math.sin, angles), *map(math.cos, angles), 0], rtol=1e-14)


def test_POSITION_an_offset_moves_sinusoids() -> None:
    config = preset("tiny", sinusoid_layout="tensor2tensor", position_offset=2)
    tree = {"source_embedding": {"table": np.zeros((config.source_vocabulary, config.model_width))}}
    found = inputs.embed(tree, config, "source", np.array([[5, 6]]), np.array([[0, 1]]))
    wanted = positional_encoding.positional_encoding(np.array([[2, 3]]), config.model_width, layout="tensor2tensor")
    assert_array_equal(found, wanted)


def test_INIT_scales_that_1_is_added_to_begin_at_0() -> None:
    values = parameters.initialise(GEMMA, 0)
    assert not any(value.any() for name, value in values.items() if name.endswith("scale"))
