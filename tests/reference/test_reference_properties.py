"""Properties of the reference for every valid configuration and input, tested with random ones."""

from typing import Any

import flat
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import DTYPES, configs, draw_heads, draw_parameters, draw_tokens, seeds, tree

from reference_numpy import TransformerConfig, attention, parameters, stacks, transformer
from reference_numpy.scores import Scores
from reference_numpy.values import Heads, Memory, Text

seeded = settings(max_examples=40, deadline=None, derandomize=True)
# Sums of another length or batch may add up in another order; the norm of a nearly constant row amplifies that by up to 1/sqrt(epsilon).
SAME: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
BATCH, TARGET, SOURCE = 4, 4, 5


def ragged(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draws a mask, True at real tokens: each row is padded on one side by its own number of tokens and keeps at least one real token."""
    real = np.zeros((BATCH, length), bool)
    for row, left in zip(real, rng.random(BATCH) < 0.5, strict=True):
        start = int(rng.integers(0, length))
        row[start if left else 0 : None if left else start + 1] = True
    return real


def draw_batch(config: TransformerConfig, rng: np.random.Generator) -> dict[str, Any]:
    """Draws the inputs of the whole model, ragged on both sides."""
    return {
        "source": draw_tokens(rng, config.source_vocabulary, (BATCH, SOURCE), config.padding_id),
        "target": draw_tokens(rng, config.target_vocabulary, (BATCH, TARGET), config.padding_id),
        "source_mask_bs": ragged(rng, SOURCE),
        "target_mask_bt": ragged(rng, TARGET),
    }


def logits_of(part: Any, config: TransformerConfig, batch: dict[str, Any]) -> np.ndarray:
    source, target = Text(batch["source"], batch["source_mask_bs"]), Text(batch["target"], batch["target_mask_bt"])
    return transformer.transformer(part, config, source, target)


def take(batch: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {name: value[rows] for name, value in batch.items()}


@seeded
@given(configs(model_width=8, layer_pattern=("global",), window=0), seeds)
def test_a_position_sees_itself_and_every_earlier_one(config: TransformerConfig, seed: int) -> None:
    part, rng = tree(config, seed, "decoder"), np.random.default_rng(seed)
    x, memory = rng.normal(size=(1, TARGET, 8)), Memory(rng.normal(size=(1, SOURCE, 8)))
    y = stacks.decoder(part, config, x, memory)
    for t in range(TARGET):
        moved = x.copy()
        moved[:, t] = rng.normal(size=8)
        difference = np.abs(stacks.decoder(part, config, moved, memory) - y).max(axis=-1)[0]
        assert (difference[t:] > 0).all()
        assert (difference[:t] == 0).all()


@seeded
@given(configs(), seeds)
def test_ids_under_the_mask_cannot_matter(config: TransformerConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed), draw_batch(config, rng)
    logits, real = logits_of(part, config, batch), batch["target_mask_bt"]
    sides = ("source", "source_mask_bs", config.source_vocabulary), ("target", "target_mask_bt", config.target_vocabulary)
    for name, mask, vocabulary in sides:
        other = draw_tokens(rng, vocabulary, batch[name].shape)
        batch[name] = np.where(batch[mask], batch[name], other)
    assert_allclose(logits_of(part, config, batch)[real], logits[real], **SAME)


@seeded
@given(configs(padding_id=0, position_start="first_token"), seeds, st.sampled_from(["left", "right"]), st.integers(1, 6))
def test_more_padding_changes_nothing_at_real_positions(config: TransformerConfig, seed: int, side: str, more: int) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed), draw_batch(config, rng)
    ids: dict[str, Any] = {"source": batch["source"] * batch["source_mask_bs"], "target": batch["target"] * batch["target_mask_bt"]}
    pad = [(0, 0), (more, 0) if side == "left" else (0, more)]
    padded: dict[str, Any] = {name: np.pad(value, pad) for name, value in ids.items()}
    logits, longer = transformer.transformer(part, config, **ids), transformer.transformer(part, config, **padded)
    assert_allclose(longer[padded["target"] != 0], logits[ids["target"] != 0], **SAME)


@seeded
@given(configs(), seeds)
def test_rows_of_a_batch_are_independent(config: TransformerConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed), draw_batch(config, rng)
    logits = logits_of(part, config, batch)
    for row in range(BATCH):
        assert_allclose(logits_of(part, config, take(batch, [row])), logits[[row]], **SAME)


@seeded
@given(configs(final_norm=False, encoder_layers=2, decoder_layers=2), seeds)
def test_stacks_are_their_own_layers_in_turn(config: TransformerConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, real = tree(config, seed), ragged(rng, SOURCE)[:, None, None]
    x, y = rng.normal(size=(BATCH, SOURCE, config.model_width)), rng.normal(size=(BATCH, TARGET, config.model_width))
    memory, output = stacks.encoder(part["encoder"], config, x, real), y
    for layer in (0, 1):
        x = flat.encoder_layer(part["encoder"]["layers"][str(layer)], config, x, real, layer=layer)
    for layer in (0, 1):
        output = flat.decoder_layer(part["decoder"]["layers"][str(layer)], config, output, x, None, real, layer=layer)
    assert_array_equal(memory, x)
    assert_array_equal(stacks.decoder(part["decoder"], config, y, Memory(memory, real)), output)


@seeded
@given(configs(layer_pattern=("global",), window=0), seeds)
def test_order_within_an_encoder_is_that_of_its_positions(config: TransformerConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, x, real = tree(config, seed, "encoder"), rng.normal(size=(BATCH, SOURCE, config.model_width)), ragged(rng, SOURCE)
    order = rng.permutation(SOURCE)
    y = stacks.encoder(part, config, x, real[:, None, None])
    moved = stacks.encoder(part, config, x[:, order], real[:, order][:, None, None], position_bs=order[None])
    assert_allclose(moved, y[:, order], **SAME)


@seeded
@given(configs(), seeds, st.sampled_from(DTYPES), st.booleans())
def test_weights_sum_to_one_and_an_empty_mask_gives_zeros(config: TransformerConfig, seed: int, dtype: Any, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((BATCH, config.heads, TARGET, SOURCE)) < 0.4
    query, key, value = draw_heads(config, rng, dtype)
    scores = Scores(causal=causal)
    output = attention.scaled_dot_product_attention(Heads(query, key, value), mask, scores)
    weights = attention.attention_weights(query, key, mask, scores)
    weights, output = weights.astype(float), output.astype(float)
    seen = mask & np.tri(TARGET, SOURCE, SOURCE - TARGET, dtype=bool) if causal else mask
    assert (weights[~seen] == 0).all()
    assert_allclose(weights.sum(-1), seen.any(-1), atol=0.03 if dtype not in (np.float64, np.float32) else 1e-6)
    assert (output.swapaxes(1, 2)[~seen.any(-1)] == 0).all()
    assert np.isfinite(output).all()


@seeded
@given(configs(), seeds, st.sampled_from(DTYPES))
def test_every_dtype_returns_its_own(config: TransformerConfig, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed, dtype=dtype), draw_batch(config, rng)
    logits = logits_of(part, config, batch)
    assert logits.dtype == dtype
    assert logits.shape == (BATCH, TARGET, config.target_vocabulary)
    assert np.isfinite(logits.astype(float)).all()
    query, key, value = draw_heads(config, rng, dtype)
    output, weights = attention.scaled_dot_product_attention(Heads(query, key, value)), attention.attention_weights(query, key)
    assert (output.dtype, weights.dtype) == (dtype, dtype)


@seeded
@given(configs(), seeds, st.booleans())
def test_shared_key_heads_equal_repeated_ones(config: TransformerConfig, seed: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    query, key, value = draw_heads(config, rng)
    heads = [h * config.key_value_heads // config.heads for h in range(config.heads)]
    scores, given = Scores(causal=causal), Heads(query, key, value)
    shared = attention.scaled_dot_product_attention(given, scores=scores)
    repeated = attention.scaled_dot_product_attention(Heads(query, key[:, :, heads], value[:, :, heads]), scores=scores)
    assert_allclose(repeated, shared, **SAME)
    part, x = draw_parameters(config, seed, "multi_head_attention"), rng.normal(size=(BATCH, TARGET, config.model_width))
    # the axis of heads precedes the last axis of kernels and biases alike
    full = {name: value[..., heads, :] if name.startswith(("key.", "value.")) else value for name, value in part.items()}
    expected = flat.multi_head_attention(parameters.nest(part), x, x)
    assert_allclose(flat.multi_head_attention(parameters.nest(full), x, x), expected, **SAME)


@seeded
@given(configs(padding_id=None), seeds)
def test_one_hot_rows_equal_ids(config: TransformerConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed), draw_batch(config, rng)
    sides = {"source": config.source_vocabulary, "target": config.target_vocabulary}
    soft = batch | {side: np.eye(vocabulary)[batch[side]] for side, vocabulary in sides.items()}
    assert_allclose(logits_of(part, config, soft), logits_of(part, config, batch), **SAME)
