"""Properties of gradients for every valid configuration and input; complex steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import DTYPES, configs, draw_heads, draw_pairs, draw_parameters, seeds, tree

from reference_numpy import TransformerConfig, attention, parameters, preset, sites, transformer
from reference_numpy.config import ACTIVATIONS
from reference_numpy.scores import Scores
from reference_numpy.values import Heads

seeded = settings(max_examples=15, deadline=None, derandomize=True)
# As for the forward function: sums in another order, amplified by the norm of a nearly constant row.
SAME: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
pytestmark = pytest.mark.filterwarnings("error")
BATCH, TARGET, SOURCE = 4, 4, 5
smooth = st.sampled_from(ACTIVATIONS[1:])  # finite differences across the corner of a ReLU are not derivatives

decoders = configs(encoder_layers=0, segments=0, model_width=6)

Gradients = dict[str, np.ndarray]


def learn(config: TransformerConfig, part: Any, **arguments: Any) -> Gradients:
    gradients = transformer.training_loss_vjp(part, config, **arguments, cotangent=np.ones(()))
    return parameters.flatten(gradients["parameters"])


def assert_same(actual: Gradients, expected: Gradients) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert_allclose(actual[name], value, **SAME, err_msg=name)


def prove_gradient(
    forward: Callable[[Any], np.ndarray], backward: Callable[[Any, Any], Any], flat: dict[str, np.ndarray], seed: int
) -> None:
    """Asserts `<g, J v> = <J^T g, v>`, with J v an extrapolated difference along v, over all parameters together."""
    rng = np.random.default_rng(seed)
    along = {name: rng.normal(size=value.shape) for name, value in flat.items()}

    def moved(h: float) -> np.ndarray:
        return forward(parameters.nest({name: value + h * along[name] for name, value in flat.items()}))

    g, step = rng.normal(size=moved(0.0).shape), 1e-5
    coarse, fine = ((moved(h) - moved(-h)) / (2 * h) for h in (step, step / 2))
    gradients = parameters.flatten(backward(parameters.nest(flat), g)["parameters"])
    assert {name: value.shape for name, value in gradients.items()} == {name: value.shape for name, value in flat.items()}
    products = {name: value * along[name] for name, value in gradients.items()}
    size = sum(np.abs(product).sum() for product in products.values())
    assert abs(sum(product.sum() for product in products.values()) - (g * (4 * fine - coarse) / 3).sum()) < 1e-7 * size


@settings(seeded, max_examples=30)
@given(st.one_of(configs(model_width=6), decoders), smooth, seeds, st.sampled_from([0.0, 0.1]))
def test_the_gradient_along_any_direction_is_the_derivative(
    config: TransformerConfig, activation: str, seed: int, smoothing: float
) -> None:
    config, rng = config.replace(activation=activation), np.random.default_rng(seed)
    given: dict[str, Any] = draw_pairs(config, rng) | {"smoothing": smoothing, "total": 9}
    given["keep"] = sites.draw(config, BATCH, SOURCE if config.encoder_layers else 0, TARGET, rng)
    given |= {} if config.encoder_layers else {"source": None}
    forward, backward = transformer.training_loss, transformer.training_loss_vjp
    prove_gradient(
        lambda p: forward(p, config, **given),
        lambda p, g: backward(p, config, **given, cotangent=g),
        draw_parameters(config, seed),
        seed,
    )


@seeded
@given(configs(), seeds, st.sampled_from(DTYPES), st.booleans())
def test_hidden_keys_and_empty_queries_have_zero_gradient(config: TransformerConfig, seed: int, dtype: Any, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((BATCH, config.heads, TARGET, SOURCE)) < 0.4
    mask[0, :, :, 2], mask[1, :, 1], mask[2] = False, False, False
    bias = np.where(rng.random(mask.shape) < 0.1, -np.inf, rng.normal(size=mask.shape)).astype(dtype)
    heads, g = Heads(*draw_heads(config, rng, dtype)), rng.normal(size=(BATCH, TARGET, config.heads, config.value_size)).astype(dtype)
    hidden = np.where(mask, bias, dtype(-np.inf))
    gradients = attention.scaled_dot_product_attention_vjp(heads, hidden, Scores(causal=causal), cotangent=g)
    for gradient, argument in zip(gradients.values(), (*heads[:3], hidden), strict=True):
        assert (gradient.shape, gradient.dtype) == (argument.shape, dtype)
        assert np.isfinite(gradient.astype(float)).all()
    wide = {name: value.astype(float) for name, value in gradients.items()}
    assert not wide["key_bsgk"][0, 2].any()
    assert not wide["value_bsge"][0, 2].any()
    assert not wide["query_bthk"][1, 1].any()
    assert not any(value[2].any() for value in wide.values())
    assert not wide["mask_bhts"][np.isneginf(hidden.astype(float))].any()
    boolean = attention.scaled_dot_product_attention_vjp(heads, mask, Scores(causal=causal), cotangent=g)
    assert boolean.keys() == {"query_bthk", "key_bsgk", "value_bsge"}
    bias = np.where(mask, 0, -np.inf).astype(dtype)
    floating = attention.scaled_dot_product_attention_vjp(heads, bias, Scores(causal=causal), cotangent=g)
    for name, gradient in boolean.items():
        assert_array_equal(floating[name].astype(float), gradient.astype(float))


@seeded
@given(configs(padding_id=0), seeds, st.sampled_from([0.0, 0.1]))
def test_rows_of_padding_change_nothing(config: TransformerConfig, seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    part, batch = tree(config, seed), draw_pairs(config, rng)
    keep = sites.draw(config, BATCH + 2, SOURCE, TARGET, rng)
    fewer = parameters.nest({site: drop[:BATCH] for site, drop in parameters.flatten(keep).items()})
    padded: Any = {name: np.pad(ids, ((0, 2), (0, 0))) for name, ids in batch.items()}
    one = transformer.training_loss(part, config, **batch, smoothing=smoothing, keep=fewer)
    assert_allclose(transformer.training_loss(part, config, **padded, smoothing=smoothing, keep=keep), one, **SAME)
    expected = learn(config, part, **batch, smoothing=smoothing, keep=fewer)
    assert_same(learn(config, part, **padded, smoothing=smoothing, keep=keep), expected)


def test_inputs_are_left_alone() -> None:
    config = preset("tiny", model_width=6)
    flat, batch = draw_parameters(config, 3), draw_pairs(config, np.random.default_rng(0))
    for array in (*flat.values(), *batch.values()):
        array.flags.writeable = False
    part = parameters.nest(flat)
    assert_same(learn(config, part, **batch, smoothing=0.1), learn(config, part, **batch, smoothing=0.1))
