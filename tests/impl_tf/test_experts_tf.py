"""Mixtures of experts, attention sinks and limited gates of the TensorFlow port, like the reference's in every program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
import tensorflow as tf
from backends import Backend, random_parameters
from kinds import conformance

from impl_tf.attention import scaled_dot_product_attention
from impl_tf.decoding import Searcher
from impl_tf.experts import largest
from impl_tf.framework import keras
from impl_tf.kernels import attention
from impl_tf.kernels.experts import block_rows
from impl_tf.programs.compiled import compiled
from impl_tf.training import Trainer
from impl_tf.values import Heads, Text
from reference_numpy import decoding, experts, parameters, preset, training
from reference_numpy.recipe import PAPER
from reference_numpy.scores import Scores
from reference_numpy.strategy import Strategy
from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation.tolerance import expect

BACKEND = Backend("tf")
BASE = preset(
    "mixtral_8x7b", source_vocabulary=23, target_vocabulary=23, model_width=10, heads=4, key_value_heads=2, key_size=4, value_size=3,
    feed_forward_width=9, decoder_layers=2, experts=8, experts_per_token=3, expert_width=6, epsilon=1e-3, padding_id=0,
)  # fmt: skip
GROUPS = {"router_scores": "sigmoid", "selection_bias": True, "router_groups": 4, "router_groups_kept": 2, "router_scale": 2.5}
LIMITED = {
    "router_scores": "chosen_softmax", "router_bias": True, "router_normalize": False, "feed_forward_bias": True,
    "activation": "gelu_sigmoid", "gate_limit": 0.7, "hidden_offset": 1.0,
}  # fmt: skip
CONFIGS = {
    "softmax": {},
    "best_two": GROUPS | {"router_group_score": "best_two", "router_group_mask": "minus_infinity", "router_epsilon": 0.1},
    "best": GROUPS | {"router_product_dtype": "float32", "router_weight_dtype": "float32"},
    "limited": LIMITED | {"router_score_dtype": "model"},
    "weighted_input": {"router_scores": "chosen_sigmoid", "router_normalize": False, "expert_weighted": "input"},
    "shared": {"shared_width": 7, "experts_per_token": 1},
    "shared_gate": {"shared_width": 7, "shared_gate": True, "feed_forward_bias": True},
    "ungated": {"gated_feed_forward": False, "activation": "relu", "feed_forward_bias": True},
    "many": {"experts": 14, "experts_per_token": 2},
}
MODELS = {
    "sinks": LIMITED | {"attention_sinks": "local", "layer_pattern": ("local", "global"), "window": 3, "local_rotary_base": 500.0},
    "mixed": GROUPS | {"expert_pattern": (False, True), "shared_width": 7, "attention_sinks": "all"},
    "multipliers": {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "shared_width": 7, "scale_embedding": True},
}
TARGET = np.random.default_rng(2).integers(1, 23, (3, 9))
TARGET[1, :2] = TARGET[2, :4] = 0  # padding on the left


def close(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * max(1.0, np.abs(wanted).max()))


def model_of(name: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    config = BASE.replace(**MODELS[name])
    arrays = random_parameters(config)
    return config, BACKEND.loaded(config, arrays), arrays


def gradients(tape: tf.GradientTape, y: Any, sources: list[Any], cotangent: Any = None) -> list[Any]:
    return [*map(tf.convert_to_tensor, tape.gradient(y, sources, cotangent, tf.UnconnectedGradients.ZERO))]


def pulled(config: Any, length: int) -> tuple[Callable[..., Any], list[np.ndarray], list[np.ndarray]]:
    """Returns a function of x and cotangent, both of them, and the reference's output and gradients: x's, then the parameters'."""
    rng, shapes = np.random.default_rng(7), parameters.shapes(config, "mixture_of_experts")
    arrays = {name: 0.6 * rng.standard_normal(shape) for name, shape in shapes.items()}
    if config.experts > 10:
        arrays["router.kernel"][:, 11] = 0  # an expert that nobody chooses
        arrays["router.kernel"][:, :4] = 4
    layer, given = BACKEND.build("mixture_of_experts", config, "float64"), [*rng.standard_normal((2, 2, length, 10))]
    BACKEND.weights.load(layer, arrays, config, "mixture_of_experts")
    variables = [x.value for x in BACKEND.weights.variables(layer, config, "mixture_of_experts").values()]

    def function(x: Any, cotangent: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return [y, *gradients(tape, y, [x, *variables], cotangent)]

    tree = parameters.nest(arrays)
    found = experts.mixture_of_experts_vjp(tree, config, given[0], cotangent=given[1])
    of_parameters = parameters.flatten(found["parameters"])
    output = experts.mixture_of_experts(tree, config, given[0])
    return function, given, [output, found["x_btd"], *(of_parameters[name] for name in shapes)]


@pytest.mark.parametrize("length", [2, 20], ids=["all_experts", "blocks"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_mixture_has_the_reference_s_output_and_gradients(name: str, length: int) -> None:
    config = BASE.replace(**CONFIGS[name])
    assert length == 2 or block_rows(2 * length, config.experts_per_token, config.experts)
    function, given, wanted = pulled(config, length)
    for found, array in zip(function(*map(tf.constant, given)), wanted, strict=True):
        close(found, array)


@pytest.mark.parametrize("shape", [[2, 20, 10], [None, None, 10]], ids=["xla", "unknown_sizes"])
def test_a_compiled_mixture_has_them_too(shape: list[int | None]) -> None:
    function, given, wanted = pulled(BASE.replace(**CONFIGS["best_two"]), 20)
    graph = tf.function(function, input_signature=[tf.TensorSpec(shape, tf.float64)] * 2, jit_compile=None not in shape)
    for found, array in zip(graph(*map(tf.constant, given)), wanted, strict=True):
        close(found, array)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_of_equal_scores_the_lower_expert_is_chosen(jit_compile: bool) -> None:
    scores = tf.constant([[-0.0, 0.0, -0.0, 0.0], [1.0, 2.0, 2.0, 2.0]])
    marked = tf.function(lambda scores: largest(scores, 2), jit_compile=jit_compile)(scores)
    assert marked.numpy().tolist() == [[True, True, False, False], [False, True, True, False]]


@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_has_the_reference_s_logits_and_gradients(name: str) -> None:
    config, model, arrays = model_of(name)
    tree = parameters.nest(arrays)
    close(model(TARGET), flat.transformer(tree, config, None, TARGET))
    close(BACKEND.port._in_steps(model, TARGET, None, (4, 1, 4)), flat.transformer(tree, config, None, TARGET))
    variables = BACKEND.weights.variables(model, config).values()
    with tf.GradientTape() as tape:
        loss = model.training_loss(None, TARGET)
    close(loss, flat.training_loss(tree, config, None, TARGET))
    wanted = parameters.flatten(flat.training_loss_vjp(tree, config, None, TARGET, cotangent=np.float64(1))["parameters"])
    for each, found in zip(parameters.axes(config), gradients(tape, loss, [x.value for x in variables]), strict=True):
        close(found, wanted[each])


@pytest.mark.parametrize("name", ["sinks", conformance("mixed"), conformance("multipliers")])
def test_compiled_programs_compute_the_same(name: str) -> None:
    config, model, arrays = model_of(name)
    wanted = flat.transformer(parameters.nest(arrays), config, None, TARGET)
    found = compiled(model, least=0)(Text(TARGET), skip_padding=True)
    close(found, np.where((TARGET != 0)[..., None], wanted, 0))
    steps = BACKEND.port._in_steps(model, TARGET, None, (4, 1, 4), compiled=True)
    close(steps, wanted)


@pytest.mark.parametrize("name", ["sinks", conformance("mixed"), conformance("multipliers")])
def test_searches_find_the_reference_s_tokens(name: str) -> None:
    config, model, arrays = model_of(name)
    strategy = Strategy.of({"start_id": 2, "end_id": 1, "max_new_tokens": 4, "beam_size": 2, "n_best": 2}, config)
    searcher = Searcher(model, compiled=False)
    for search, token in (("greedy_search", "token_bn"), ("beam_search", "token_bwn")):
        wanted = getattr(decoding, search)(parameters.nest(arrays), config, None, strategy, TARGET)
        assert np.array_equal(getattr(searcher, search)(None, strategy, TARGET)[token], wanted[token])


@pytest.mark.parametrize("recompute", [False, True])
def test_a_training_step_is_the_reference_s(recompute: bool) -> None:
    config = BASE.replace(**MODELS["mixed"], dropout_rate=0.0)
    arrays, recipe = random_parameters(config), dataclasses.replace(PAPER, weight_decay=0.1)
    runs = Trainer(config, recipe, arrays, compiled=False, recompute=recompute), training.Trainer(config, recipe, arrays)
    losses = [float(run.train_step(None, TARGET)) for run in runs]
    close(*map(np.array, losses))
    found, wanted = (run.state() for run in runs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-9)


def test_sinks_in_chunks_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arrays = [tf.constant(rng.standard_normal(shape)) for shape in ((2, 13, 4, 5), (2, 11, 2, 5), (4,), (1, 4, 13, 11))]

    def found() -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            query, key, sink, bias = arrays
            y = scaled_dot_product_attention(Heads(query, key, key, sink), bias, Scores(causal=True, window=4))
            total = tf.reduce_sum(tf.square(y))
        return [y, *gradients(tape, total, arrays)]

    wanted = found()
    monkeypatch.setattr(attention, "CHUNK_WEIGHTS", dict.fromkeys(attention.CHUNK_WEIGHTS, 4 * 2 * 4 * 11))
    for one, other in zip(found(), wanted, strict=True):
        close(one, other.numpy())


@pytest.mark.parametrize("name", ["limited", "weighted_input"])
def test_bfloat16_is_as_exact_as_the_judge_asks(name: str) -> None:
    config = BASE.replace(**CONFIGS[name])
    rng, shapes = np.random.default_rng(1), parameters.shapes(config, "mixture_of_experts")
    arrays = {each: 0.6 * rng.standard_normal(shape) for each, shape in shapes.items()}
    case = Case(name, "mixture_of_experts", config, {"x_btd": rng.standard_normal((2, 20, 10))}, arrays).at("bfloat16")
    (wanted,), found = expect(case).values(), BACKEND.adapter.run(case)
    compared = compare(wanted, found)
    assert not compared.message and not compared.incomparable


@pytest.mark.conformance
def test_a_model_is_exported_and_saved(tmp_path: Any) -> None:
    config, model, arrays = model_of("sinks")
    wanted = flat.transformer(parameters.nest(arrays), config, None, TARGET)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    for rows in (3, 1):
        close(served.serve(tf.constant(TARGET[:rows])), wanted[:rows])
    model.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras")(TARGET), wanted)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(TARGET[:, :-1], TARGET[:, 1:], epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
