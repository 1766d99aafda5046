"""Encoder-only and decoder-only models: sizes, properties of every configuration, gradients, and rejected input."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from messages import mentions
from numpy.testing import assert_allclose
from strategies import configs, draw_parameters, draw_tokens, seeds, tree
from test_reference_gradient_properties import SAME, decoders, prove_gradient, seeded, smooth

from reference_numpy import (
    TransformerConfig,
    cache,
    decoding,
    encoder_only,
    heads,
    parameters,
    preset,
    sites,
    states,
    transformer,
)
from reference_numpy.positional_encoding import position_embedding, token_positions
from reference_numpy.recipe import PAPER
from reference_numpy.training import Trainer
from reference_numpy.values import Text

ROWS, LENGTH = 4, 5

HEADS: dict[str, dict[str, Any]] = {
    "pool": {"pooler": True},
    "classify": {"pooler": True, "classes": 3},
    "masked_language_logits": {"masked_language_head": True},
    "classification_loss": {"pooler": True, "classes": 3},
}
encoders = configs(decoder_layers=0, model_width=6)
steps = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def read(config: TransformerConfig, rng: np.random.Generator) -> dict[str, Any]:
    """Draws a source with any mask that leaves no row empty, and segments if the config has them."""
    mask = rng.random((ROWS, LENGTH)) < 0.7
    mask[:, 2] = True
    given = {"source": draw_tokens(rng, config.source_vocabulary, (ROWS, LENGTH)), "source_mask_bs": mask}
    return given | ({"segment_bs": rng.integers(0, config.segments, (ROWS, LENGTH))} if config.segments else {})


@pytest.mark.parametrize("component", HEADS)
@seeded
@given(encoders, smooth, seeds)
def test_the_gradient_of_an_encoder_is_the_derivative(component: str, config: TransformerConfig, activation: str, seed: int) -> None:
    config, rng = config.replace(activation=activation, **HEADS[component]), np.random.default_rng(seed)
    inputs = read(config, rng) | {"keep": sites.draw(config, ROWS, LENGTH, 0, rng)}
    if component == "classification_loss":
        inputs |= {"label_b": rng.integers(0, 3, ROWS), "smoothing": 0.1, "total": 7}
    forward, backward = getattr(flat, component), getattr(flat, f"{component}_vjp")
    values = draw_parameters(config, seed)
    prove_gradient(lambda p: forward(p, config, **inputs), lambda p, g: backward(p, config, **inputs, cotangent=g), values, seed)


@seeded
@given(st.one_of(configs(model_width=6), decoders), seeds, steps)
def test_steps_give_what_a_decoder_gives_at_once(config: TransformerConfig, seed: int, splits: Any) -> None:
    """Except if frequencies depend on the length read so far (ROTARY)."""
    assume({"dynamic", "longrope"}.isdisjoint({config.rotary_scaling.kind, config.local_rotary_scaling.kind}))
    rng, part = np.random.default_rng(seed), tree(config, seed)
    target = draw_tokens(rng, config.target_vocabulary, (ROWS, sum(splits)), config.padding_id)
    memory, source_mask = rng.normal(size=(ROWS, LENGTH, 6)), rng.random((ROWS, LENGTH)) < 0.7
    read = (memory, source_mask) if config.encoder_layers else (None, None)
    mask = rng.random(target.shape) < 0.7
    whole = transformer.decode(part, config, Text(target, mask), *read)
    found = cache.decode_in_steps(part, config, target, read[0], splits, read[1], mask)
    assert_allclose(found, whole, **SAME)


@seeded
@given(decoders, seeds, st.integers(1, 6))
def test_padding_on_the_left_moves_a_prompt_only_where_positions_count_from_the_row(
    config: TransformerConfig, seed: int, more: int
) -> None:
    part, rng = tree(config, seed), np.random.default_rng(seed)
    target = draw_tokens(rng, config.target_vocabulary, (ROWS, LENGTH), config.padding_id)
    padded, mask = (np.pad(value, ((0, 0), (more, 0))) for value in (target, np.ones(target.shape, bool)))
    first, row = (config.replace(position_start=start) for start in ("first_token", "row"))
    expected = transformer.decode(part, config, target)
    assert_allclose(transformer.decode(part, first, Text(padded, mask))[:, more:], expected, **SAME)
    shifted = transformer.decode(part, row, Text(padded, mask))[:, more:]
    if config.positions not in ("sinusoidal", "learned"):  # other positions are relative or absent
        return
    moved = np.abs(shifted - expected).max() > 1e-6
    assert moved or np.abs(expected - expected[:1, :1]).max() < 1e-6  # unless nothing that is read affects it


@seeded
@given(encoders, seeds)
def test_states_end_in_what_the_encoder_returns(config: TransformerConfig, seed: int) -> None:
    part, inputs = tree(config, seed), read(config, np.random.default_rng(seed))
    found = flat.states(part, config, **inputs)["encoder"]
    assert found["hidden_lbtd"].shape[0] == config.encoder_layers + 1
    assert_allclose(found["hidden_lbtd"][-1], flat.encode(part, config, **inputs), **SAME)
    sums_lbht = found["self_attention_lbhts"].sum(axis=-1)
    assert_allclose(sums_lbht[sums_lbht != 0], 1, rtol=1e-12)  # a window of padding has no weights
    assert (sums_lbht[..., 0, 0] != 0).any()
    assert not found["self_attention_lbhts"][..., ~inputs["source_mask_bs"][0]][:, 0].any()


@seeded
@given(configs(segments=2), seeds)
def test_states_of_both_stacks_end_in_memory_and_logits(config: TransformerConfig, seed: int) -> None:
    part, rng = tree(config, seed), np.random.default_rng(seed)
    source, target = (draw_tokens(rng, v, (ROWS, LENGTH), config.padding_id) for v in (config.source_vocabulary, config.target_vocabulary))
    text = Text(source, segment_bt=rng.integers(0, 2, source.shape))
    found = states.states(part, config, text, target)
    assert_allclose(found["encoder"]["hidden_lbtd"][-1], transformer.encode(part, config, text), **SAME)
    logits = transformer.logits(part, config, found["decoder"]["hidden_lbtd"][-1])
    assert_allclose(logits, transformer.transformer(part, config, text, target), **SAME)
    assert found["decoder"]["cross_attention_lbhts"].shape == (config.decoder_layers, ROWS, config.heads, LENGTH, LENGTH)


def test_presets_have_the_sizes_of_the_published_models() -> None:
    """BERT base has 109,482,240 parameters with its pooler (Hugging Face's count of bert-base-uncased), GPT-2 small 124,439,808; the others
    have the counts of their published checkpoints."""
    bert = preset("bert_base", masked_language_head=False)
    assert parameters.count(bert) == 109_482_240
    assert parameters.count(preset("bert_base")) == 109_482_240 + 768 * 768 + 768 + 2 * 768 + 30522
    assert parameters.count(preset("gpt2_small")) == 124_439_808
    published = {
        "llama2_7b": 6_738_415_616, "llama31_8b": 8_030_261_248, "mistral_7b": 7_241_732_096, "qwen3_600m": 596_049_920,
        "gemma2_2b": 2_614_341_888, "gemma3_1b": 999_885_952,
    }  # fmt: skip
    assert {name: parameters.count(preset(name)) for name in published} == published
    assert (bert.epsilon, bert.activation, bert.norm_placement, bert.final_norm) == (1e-12, "gelu_erf", "post", False)
    gpt2 = preset("gpt2_small")
    assert (gpt2.epsilon, gpt2.activation, gpt2.norm_placement, gpt2.final_norm) == (1e-5, "gelu_tanh", "pre", True)


BERT = preset("bert_base", source_vocabulary=7, target_vocabulary=7, model_width=6, heads=2, key_value_heads=2, key_size=3, value_size=3,
              feed_forward_width=5, encoder_layers=1, max_positions=4, padding_id=None, classes=3)  # fmt: skip
GPT2 = preset("gpt2_small", source_vocabulary=7, target_vocabulary=7, model_width=6, heads=2, key_value_heads=2, key_size=3, value_size=3,
              feed_forward_width=5, decoder_layers=1, max_positions=4)  # fmt: skip
BERT_MODEL, GPT2_MODEL = tree(BERT, 0), tree(GPT2, 0)
IDS, X = np.ones((2, 3), int), np.zeros((2, 3, 6))
STRATEGY = {"start_id": None, "end_id": 1, "max_new_tokens": 2}


@pytest.mark.parametrize(
    ("called", "heads"),
    [
        (encoder_only.classify, {"classes": 3}),
        (encoder_only.masked_language_logits, {"classes": 0, "masked_language_head": True}),
        (transformer.encode, {"classes": 0, "masked_language_head": False}),
    ],
)
def test_an_encoder_alone_that_is_called_gives_what_its_head_gives_forward_and_backward(called: Any, heads: dict[str, Any]) -> None:
    config = BERT.replace(max_positions=LENGTH, pooler=heads["classes"] > 0, **{"masked_language_head": False} | heads)
    given, values = read(config, np.random.default_rng(0)), draw_parameters(config, 0)
    part, text = parameters.nest(values), Text(given["source"], given["source_mask_bs"], given.get("segment_bs"))
    assert_allclose(transformer.transformer(part, config, text), called(part, config, text), rtol=0, atol=0)
    prove_gradient(
        lambda tree: transformer.transformer(tree, config, text),
        lambda tree, g: transformer.transformer_vjp(tree, config, text, cotangent=g),
        values,
        0,
    )


def bert(call: Any, *given: Any, **named: Any) -> Callable[[], Any]:
    return functools.partial(call, BERT_MODEL, *given, **named)


def gpt2(call: Any, *given: Any, **named: Any) -> Callable[[], Any]:
    return functools.partial(call, GPT2_MODEL, *given, **named)


BAD: list[tuple[Callable[[], Any], str]] = [
    (bert(transformer.encode, BERT, Text(IDS, segment_bt=IDS * 1.0)), "segment … b t; got float64 of shape (2, 3)"),
    (bert(transformer.decode, BERT, IDS), "decoder_layers=0"),
    (bert(transformer.transformer, BERT, IDS, Text(IDS, IDS > 0)), "encoder-only … target"),
    (bert(transformer.transformer, BERT, IDS, IDS), "encoder-only … target"),
    (gpt2(transformer.transformer, GPT2, None), "None"),
    (
        bert(transformer.transformer, BERT.replace(masked_language_head=True), IDS),
        "encoder-only … `classify` or `masked_language_logits`",
    ),
    (bert(encoder_only.pool, BERT.replace(pooler=False, classes=0), IDS), "pooler=False"),
    (
        bert(encoder_only.classification_loss, BERT, IDS, np.ones((2, 1), int)),
        "classes … b; got int64 of shape (2, 1)",
    ),
    (gpt2(transformer.encode, GPT2, IDS), "encoder_layers=0"),
    (gpt2(transformer.decode, GPT2, IDS, X), "decoder-only model (encoder_layers=0) … shape (2, 3, 6)"),
    (gpt2(cache.start_cache, GPT2, None), "decoder-only … None"),
    (gpt2(cache.decode_in_steps, GPT2, np.ones((2, 5), int), None, (4, 1)), "serves 4 … 5"),
    (gpt2(decoding.greedy_search, GPT2, None, STRATEGY | {"max_new_tokens": 3}, IDS), "serves 4 … 5"),
    (gpt2(decoding.greedy_search, GPT2, None, STRATEGY | {"start_id": 2}), "decoder-only … None"),
    (gpt2(decoding.greedy_search, GPT2, None, STRATEGY, Text(IDS, np.array([[True, True, False]] * 2))), "prefix … True"),
    (lambda: heads.pooler(BERT_MODEL["pooler"], X[:, :0]), "x … 1; got shape (2, 0, 6)"),
    (lambda: heads.classifier(BERT_MODEL["classifier"], X), "pooled … b r … r=6; got shape (2, 3, 6)"),
    (lambda: position_embedding({"table": np.ones((6, 2))}, np.array([[4]]), 2), "position … 0 .. 3; got 4 .. 4"),
    (lambda: token_positions(np.ones((1, 2), bool), "left"), "first_token … 'left'"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused_with_a_clear_message(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert mentions(str(caught.value), message)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["classes", "decoder"])
def test_a_run_learns_what_it_is_given_and_resumes_to_the_bit(name: str, parts: int) -> None:
    config = BERT.replace(masked_language_head=False, dropout_rate=0.1) if name == "classes" else GPT2
    rng, recipe = np.random.default_rng(0), dataclasses.replace(PAPER, warmup=20, microbatches=parts, smoothing=0.0)
    batch = (rng.integers(0, 7, (6, 4)), rng.integers(0, 3, 6)) if config.classes else (None, rng.integers(0, 7, (6, 5)))
    trainer = Trainer(config, recipe, parameters.initialise(config, 0), seed=3)
    before = trainer.loss(*batch)
    assert before[1] == (6 if config.classes else 24)
    for _ in range(10):
        trainer.train_step(*batch)
    other = Trainer(config, recipe, parameters.initialise(config, 1), seed=3)
    other.load_state(trainer.state(), trainer.steps)
    for _ in range(40):
        assert trainer.train_step(*batch) == other.train_step(*batch)
    assert trainer.loss(*batch)[0] < 0.5 * before[0]


def test_a_run_whose_loss_leaves_parameters_out_is_refused() -> None:
    message = "got classes=3, masked_language_head=True$"
    with pytest.raises(ValueError, match=message):
        Trainer(BERT, PAPER, parameters.initialise(BERT, 0))
    classes = BERT.replace(masked_language_head=False)
    trainer = Trainer(classes, PAPER, parameters.initialise(classes, 0))
    with pytest.raises(ValueError, match=r"int64.*\(2, 3\)$"):
        trainer.train_step(IDS, IDS)
