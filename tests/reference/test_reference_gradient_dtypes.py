"""Dtypes: of gradients, computed in float32 for half precision, and at the ends of the range."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from strategies import draw_pairs, every_dtype, half_precision, tree

from reference_numpy import (
    arithmetic,
    embedding,
    feed_forward,
    loss,
    normalization,
    parameters,
    preset,
    rotary,
    sites,
    transformer,
)
from reference_numpy.config import ACTIVATIONS
from reference_numpy.softmax import softmax, softmax_vjp

pytestmark = pytest.mark.filterwarnings("error")
BATCH, TARGET, SOURCE = 4, 4, 5


@every_dtype
@pytest.mark.parametrize("name", ["shared", "untied"])
def test_every_gradient_has_the_dtype_of_its_argument(name: str, dtype: Any) -> None:
    config = preset("tiny", model_width=6, share_embeddings=name == "shared", tie_logits=name == "shared", final_norm=True,
                    attention_bias=True, output_bias=True, heads=4, key_value_heads=2, attention_dropout_rate=0.1)  # fmt: skip
    rng = np.random.default_rng(0)
    part, batch = tree(config, 1, dtype=dtype), draw_pairs(config, rng)
    keep = sites.draw(config, BATCH, SOURCE, TARGET, rng)
    source = np.eye(101, dtype=dtype)[batch["source"]]
    gradients = transformer.training_loss_vjp(part, config, source, batch["target"], 0.1, keep=keep, cotangent=np.ones((), dtype))
    flat = parameters.flatten(gradients)
    assert {name.removeprefix("parameters.") for name in flat} == {*parameters.shapes(config), "source"}
    for name, value in flat.items():
        assert value.dtype == dtype, name
        assert np.isfinite(value.astype(float)).all(), name
    value = transformer.training_loss(part, config, source, batch["target"], 0.1, keep=keep)
    assert (value.shape, value.dtype) == ((), dtype)


@every_dtype
def test_a_batch_of_0_has_gradients_of_zeros(dtype: Any) -> None:
    config = preset("tiny", final_norm=True, attention_bias=True, output_bias=True, tie_logits=False)
    ids = np.zeros((0, 3), int)
    gradients = transformer.training_loss_vjp(tree(config, 4, dtype=dtype), config, ids, ids, 0.1, cotangent=np.ones((), dtype))
    for name, value in parameters.flatten(gradients["parameters"]).items():
        assert (value.shape, value.dtype) == (parameters.shapes(config)[name], dtype), name
        assert not value.astype(float).any(), name


def draw(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def wide(array: Any) -> Any:
    """Casts floating arrays to float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) and array.dtype.kind not in "iub" else array


LABEL, FAR = np.random.default_rng(5).integers(0, 40, (3, 7)), np.array([[3, 4095, 100000]])
Rounded = Callable[[Callable[[Any], Any], Any], dict[str, np.ndarray]]


def normed(w: Callable[[Any], Any], d: Any) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Draws the arguments of a norm: rows of mean 100, and equally large offsets."""
    part = {"scale": w(draw(d, 16)), "offset": w(100 * draw(d, 16, seed=1))}
    return part, w((100 + draw(float, 2, 30, 16)).astype(d)), 1e-5


ROUNDED_ONCE: dict[str, Rounded] = {
    **{
        name: lambda w, d, name=name: {
            "y": feed_forward.activation(w(draw(d, 500)), name),
            **feed_forward.activation_vjp(w(draw(d, 500)), name, cotangent=w(draw(d, 500, seed=1))),
        }
        for name in ACTIVATIONS[1:]
    },
    "softmax": lambda w, d: {
        "y": softmax(w(4 * draw(d, 30, 40))),
        # a sum of 5000 ones stalls at 256 in bfloat16 and at 2048 in float16
        "uniform": softmax(w(np.zeros(5000, d))),
        **softmax_vjp(w(draw(d, 30, 40)), cotangent=w(draw(d, 30, 40, seed=1))),
    },
    "rotary": lambda w, d: {"y": rotary.rotary_embedding(w(draw(d, 1, 3, 4, 128)), FAR, preset("llama2_7b"))},
    "embedding": lambda w, d: {"y": embedding.embedding({"table": w(draw(d, 9, 3))}, LABEL % 9, True)},
    "layer_norm": lambda w, d: {
        "y": normalization.layer_norm(*normed(w, d)),
        **parameters.flatten(normalization.layer_norm_vjp(*normed(w, d), cotangent=w(draw(d, 2, 30, 16)))),
    },
    "cross_entropy": lambda w, d: {
        "y": loss.cross_entropy(w(8 * draw(d, 3, 7, 40)), LABEL, None, 0.1),
        "uniform": loss.cross_entropy(w(np.zeros((1, 1, 5000), d)), np.array([[7]]), None, 0.1),
        **loss.cross_entropy_vjp(w(draw(d, 3, 7, 40)), LABEL, None, 0.1, cotangent=w(np.ones((), d))),
    },
}


@half_precision
@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_half_precision_compute_in_float32_and_round_once(name: str, dtype: Any) -> None:
    gradients, exact = (ROUNDED_ONCE[name](convert, dtype) for convert in (lambda array: array, wide))
    for key, value in exact.items():
        assert gradients[key].dtype == dtype
        assert_array_equal(gradients[key], value.astype(dtype), err_msg=key)


@half_precision
def test_half_precision_compute_sums_over_positions_in_float32(dtype: Any) -> None:
    # A sum of 5000 ones stalls at 256 in bfloat16 and at 2048 in float16
    many, ids = np.ones((5, 1000, 2), dtype), np.zeros((5, 1000), int)
    expected = np.full(2, 5000, dtype)
    assert_array_equal(embedding.embedding_vjp({"table": many[0, :3]}, ids, False, cotangent=many)["parameters"]["table"][0], expected)
    part = {"kernel": np.ones((2, 2), dtype), "bias": np.ones(2, dtype)}
    for value in embedding.logits_vjp(part, many, cotangent=many)["parameters"].values():
        assert_array_equal(value.reshape(-1, 2)[0], expected)
    norm = normalization.layer_norm_vjp({"scale": many[0, 0], "offset": many[0, 0]}, many, 1e-5, cotangent=many)
    assert_array_equal(norm["parameters"]["offset"], expected)
    assert_array_equal(arithmetic.unbroadcast(many, (1, 1, 2))[0, 0], expected)


@every_dtype
def test_no_gradient_of_large_logits_is_nan_and_those_under_the_mask_may_be_anything(dtype: Any) -> None:
    largest = 6e4 if dtype == np.float16 else 2e5
    logits = np.array([[[largest, -largest, 0], [largest, largest, largest], [-largest, -largest, 1]]], dtype)
    label = np.array([[1, 0, 2]])
    g = softmax_vjp(logits, cotangent=np.array([[[1, 2, 3]]], dtype))["logits"]
    assert np.isfinite(g.astype(float)).all()
    assert_array_equal(g[0, [0, 2]].astype(float), 0)
    for smoothing in (0.0, 0.1):
        assert np.isfinite(float(loss.cross_entropy(logits, label, None, smoothing, total=9)))
        gradient = loss.cross_entropy_vjp(logits, label, None, smoothing, cotangent=np.ones((), dtype))["logits_btv"]
        assert np.isfinite(gradient.astype(float)).all()
    logits, label = np.zeros((1, 3, 2), dtype), np.array([[0, 1, 1]])
    logits[0, 1], mask = [0, -np.inf], np.array([[True, False, True]])
    for smoothing in (0.0, 0.1):
        expected = np.asarray(np.log(2)).astype(dtype)
        assert_allclose(float(loss.cross_entropy(logits, label, mask, smoothing)), float(expected), rtol=1e-6)
        gradient = loss.cross_entropy_vjp(logits, label, mask, smoothing, cotangent=np.ones((), dtype))["logits_btv"]
        assert not gradient[0, 1].astype(float).any()
        assert np.isfinite(gradient.astype(float)).all()


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_activations_at_the_ends_of_the_range(activation: str, dtype: Any) -> None:
    squared = activation == "relu_squared"
    x = np.array([-6e4, -1e3, -0.0, 0, 1e3, 3e4 if squared else 6e4], dtype)
    slope = feed_forward.activation_vjp(x, activation, cotangent=np.ones(6, dtype))["x"]
    at_zero = 0 if activation.startswith("relu") else 0.5
    ends = 2 * x[-2:].astype(float) if squared else (1, 1)
    assert_array_equal(slope.astype(float), [0, 0, at_zero, at_zero, *ends])


@every_dtype
def test_gradients_of_a_constant_row_and_of_large_rows_are_finite(dtype: Any) -> None:
    part = {"scale": np.ones(4, dtype), "offset": np.zeros(4, dtype)}
    x = np.array([[[3, 3, 3, 3], [6e4, -6e4, 6e4, -6e4], [0, 0, 0, 0], [6e4, 6e4, 6e4, 6e4]]], dtype)
    gradients = normalization.layer_norm_vjp(part, x, 1e-5, cotangent=np.array([[[1, 0, 0, -1]]], dtype).repeat(4, 1))
    g = gradients["x_btd"].astype(float)
    assert_allclose(g[0, [0, 2, 3]], np.tile([1e5**0.5, 0, 0, -(1e5**0.5)], (3, 1)), rtol=0.004)
    assert_allclose(g[0, 1], np.zeros(4), atol=2 / 6e4)
    assert all(np.isfinite(value.astype(float)).all() for value in parameters.flatten(gradients).values())


@every_dtype
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_no_gradient_of_the_whole_model_is_nan(dtype: Any, placement: str) -> None:
    """Rows of padding, large tables and dropout at every site never give NaN."""
    config = preset("tiny", model_width=6, norm_placement=placement, attention_dropout_rate=0.5, hidden_dropout_rate=0.5, epsilon=0.1)
    part = tree(config, 2, dtype=dtype)
    part["source_embedding"]["table"] = (part["source_embedding"]["table"] * dtype(20)).astype(dtype)
    source, target = np.array([[0, 0], [0, 5]]), np.array([[0, 0, 0], [0, 7, 0]])
    shapes = sites.shapes(config, 2, 2, 2)
    for drop in (np.ones, np.zeros):
        keep = parameters.nest({site: drop(shape, bool) for site, shape in shapes.items()})
        gradients = transformer.training_loss_vjp(part, config, source, target, 0.1, keep=keep, cotangent=np.ones((), dtype))
        assert all(np.isfinite(value.astype(float)).all() for value in parameters.flatten(gradients).values())
