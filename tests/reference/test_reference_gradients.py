"""Every `_vjp` of the reference against differences of its own forward function: every element of every parameter and floating input.

A Richardson-extrapolated central difference of `<cotangent, forward(x)>` in float64: (4 D(h/2) - D(h)) / 3, whose error is of order h^4.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kinds import every
from strategies import tree

from reference_numpy import (
    TransformerConfig,
    attention,
    embedding,
    feed_forward,
    parameters,
    preset,
    sites,
    transformer,
)
from reference_numpy.config import ACTIVATIONS

RELATIVE = 1e-7  # of the largest element of a gradient
STEP = 2e-4  # its fourth power is less than a rounding, and so small a step seldom meets the corner of a ReLU
EPS = float(np.finfo(np.float64).eps)
ROUNDINGS = 64  # of each term of the scalar that is differentiated; the difference divides them by the step
CONFIG = preset("tiny", source_vocabulary=5, target_vocabulary=5, model_width=4, heads=2, key_value_heads=1, key_size=1, value_size=2,
                feed_forward_width=3, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True, epsilon=1e-3,
                dropout_rate=0.3, attention_dropout_rate=0.2, hidden_dropout_rate=0.4)  # fmt: skip
BATCH, TARGET, SOURCE = 2, 3, 4

activations = pytest.mark.parametrize("activation", ACTIVATIONS)
dropped = pytest.mark.parametrize("drop", [False, True], ids=["evaluation", "dropout"])


def differences(scalar: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """The derivative of scalar() with respect to every element of an array that it reads."""
    result = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        kept, quotients = array[index], []
        for h in (STEP, STEP / 2):
            values = []
            for moved in (kept + h, kept - h):
                array[index] = moved
                values.append(scalar())
            quotients.append((values[0] - values[1]) / (2 * h))
        array[index] = kept
        result[index] = (4 * quotients[1] - quotients[0]) / 3
    return result


def prove(forward: Callable, vjp: Callable, **inputs: Any) -> dict[str, np.ndarray]:
    """Asserts that vjp returns the gradient of forward for every floating argument; returns the gradients by dotted name."""
    flat = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in parameters.flatten(inputs).items()}
    inputs = parameters.nest(flat)
    output = forward(**inputs)
    cotangent = np.random.default_rng(99).normal(size=output.shape)
    gradients = parameters.flatten(vjp(**inputs, cotangent=cotangent))
    floating = {name: value for name, value in flat.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
    assert set(gradients) <= set(floating)
    rounding = ROUNDINGS * EPS * np.abs(cotangent * output).sum() / STEP
    for name, value in floating.items():
        expected = differences(lambda: float((cotangent * forward(**inputs)).sum()), value)
        gradient = gradients.get(name, np.zeros(value.shape))  # what the forward does not read
        assert (gradient.shape, gradient.dtype) == (value.shape, value.dtype), name
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=RELATIVE * np.abs(expected).max(initial=0) + rounding, err_msg=name)
        if name not in gradients:
            assert not expected.any(), f"{name} has no gradient"
    return gradients


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def chance(*shape: int, share: float = 0.7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).random(shape) < share


def drawn(config: TransformerConfig) -> Any:
    return sites.draw(config, BATCH, SOURCE, TARGET, np.random.default_rng(3))


def heads(config: TransformerConfig = CONFIG) -> dict[str, Any]:
    c = config
    return {
        "query_bthk": normal(BATCH, TARGET, c.heads, c.key_size),
        "key_bsgk": normal(BATCH, SOURCE, c.key_value_heads, c.key_size),
        "value_bsge": normal(BATCH, SOURCE, c.key_value_heads, c.value_size),
    }


@pytest.mark.parametrize("scale", [True, False])
def test_embedding(scale: bool) -> None:
    part, ids = {"table": normal(5, 3)}, np.array([[4, 0, 4], [2, 4, 2]])
    ids_gradient = prove(embedding.embedding, embedding.embedding_vjp, parameters=part, token=ids, scale=scale)
    assert set(ids_gradient) == {"parameters.table"}
    assert not ids_gradient["parameters.table"][[1, 3]].any()
    soft = np.random.default_rng(1).dirichlet(np.ones(5), (2, 3))
    assert "token" in prove(embedding.embedding, embedding.embedding_vjp, parameters=part, token=soft, scale=scale)


@pytest.mark.parametrize("bias", [True, False])
def test_logits(bias: bool) -> None:
    part = {"kernel": normal(4, 5)} | ({"bias": normal(5)} if bias else {})
    prove(embedding.logits, embedding.logits_vjp, parameters=part, x_btd=normal(2, 3, 4))


@pytest.mark.parametrize("causal", [False, True])
@dropped
def test_attention_with_mask_bias_and_shared_heads(causal: bool, drop: bool) -> None:
    config = CONFIG.replace(heads=4, key_value_heads=2)
    mask, bias = chance(BATCH, 4, TARGET, SOURCE), normal(BATCH, 4, TARGET, SOURCE)
    mask[1, 2, 1] = False
    bias[0, 1, 2, 3] = bias[1, 0, 0] = -np.inf
    keep: dict[str, Any] = {"keep_bhts": chance(BATCH, 4, TARGET, SOURCE, seed=1), "dropout_rate": 0.3} if drop else {}
    both: Any = attention.scaled_dot_product_attention, attention.scaled_dot_product_attention_vjp
    inputs = heads(config) | keep
    gradients = prove(*both, **inputs, mask_bhts=mask, bias_bhts=bias, causal=causal)
    assert set(gradients) == {*heads(), "bias_bhts"}


@pytest.mark.parametrize("shape", [(1, 1, 1, SOURCE), (BATCH, 1, TARGET, 1), (1, 2, 1, 1), (1, 1, 1, 1), (1, 2, TARGET, SOURCE)])
def test_attention_with_a_bias_that_is_broadcast(shape: tuple[int, ...]) -> None:
    both = attention.scaled_dot_product_attention, attention.scaled_dot_product_attention_vjp
    prove(*both, **heads(), bias_bhts=normal(*shape), mask_bhts=chance(1, 1, TARGET, SOURCE, seed=4))


def test_attention_with_more_queries_than_keys_leaves_the_first_without_one() -> None:
    both = attention.scaled_dot_product_attention, attention.scaled_dot_product_attention_vjp
    inputs = heads() | {"query_bthk": normal(BATCH, SOURCE + 2, 2, 1)}
    gradients = prove(*both, **inputs, causal=True)
    assert not gradients["query_bthk"][:, :2].any()
    assert gradients["query_bthk"][:, 3:].all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@dropped
def test_multi_head_attention(bias: bool, groups: int, drop: bool) -> None:
    config = CONFIG.replace(attention_bias=bias, heads=4, key_value_heads=groups)
    keep: dict[str, Any] = {"keep_bhts": chance(BATCH, 4, TARGET, SOURCE, seed=1), "dropout_rate": 0.3} if drop else {}
    mask = chance(BATCH, 1, TARGET, SOURCE)
    mask[0, 0, 1] = False
    both = attention.multi_head_attention, attention.multi_head_attention_vjp
    inputs: dict[str, Any] = {
        "query_btd": normal(BATCH, TARGET, 4),
        "memory_bsd": normal(BATCH, SOURCE, 4),
        "bias_bhts": normal(1, 4, TARGET, SOURCE),
    }
    inputs |= keep
    prove(*both, parameters=tree(config, 1, "multi_head_attention"), **inputs, mask_bhts=mask, causal=True)


@activations
@dropped
def test_feed_forward(activation: str, drop: bool) -> None:
    part = tree(CONFIG, 2, "feed_forward")
    keep: dict[str, Any] = {"keep_btf": chance(BATCH, TARGET, 3), "dropout_rate": 0.3} if drop else {}
    both = feed_forward.feed_forward, feed_forward.feed_forward_vjp
    prove(*both, parameters=part, x_btd=normal(BATCH, TARGET, 4), activation_name=activation, **keep)


SOURCE_IDS, TARGET_IDS = np.array([[1, 2, 2, 0], [0, 4, 3, 0]]), np.array([[1, 3, 2, 0], [2, 4, 4, 1]])
# Each row with what it changes: together every value of every option, and every pair of sharing and tying.
MODELS: dict[str, dict[str, Any]] = {
    "shared and tied": {},
    "untied": {"share_embeddings": False, "tie_logits": False, "norm_placement": "pre", "activation": "gelu_erf", "final_norm": True},
    "shared": {"tie_logits": False, "output_bias": False, "scale_embedding": False, "attention_bias": False},
    "tied": {"share_embeddings": False, "target_vocabulary": 6, "activation": "gelu_tanh", "output_bias": False, "key_value_heads": 2},
    "no padding": {"padding_id": None, "norm_placement": "pre", "output_bias": False, "key_size": 2, "value_size": 1},
    "padding is 2": {"padding_id": 2, "activation": "gelu_erf", "final_norm": True, "scale_embedding": False},
}


@pytest.mark.parametrize("name", every(3, MODELS))
def test_training_loss_of_every_kind_of_model(name: str) -> None:
    """Without dropout where the config says so, with smoothing and a larger batch's total in every second one."""
    config, odd = CONFIG.replace(**MODELS[name]), list(MODELS).index(name) % 2
    keep = drawn(config) if name != "shared" else None
    settings: dict[str, Any] = {"smoothing": 0.1, "total": 9} if odd else {"smoothing": 0.0, "total": None}
    both = transformer.training_loss, transformer.training_loss_vjp
    gradients = prove(*both, parameters=tree(config, 7), config=config, source=SOURCE_IDS, target=TARGET_IDS, **settings, keep=keep)
    assert {f"parameters.{name}" for name in parameters.shapes(config)} == set(gradients)


@pytest.mark.parametrize("tie", [True, False])
def test_transformer_of_soft_tokens_and_given_masks(tie: bool) -> None:
    config = CONFIG.replace(activation="gelu_tanh", tie_logits=tie, feed_forward_width=2, value_size=1)
    source, target = np.random.default_rng(8).dirichlet(np.ones(5), (2, BATCH, SOURCE))
    masks: dict[str, Any] = {"source_mask_bs": np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool), "target_mask_bt": chance(BATCH, TARGET)}
    both = transformer.transformer, transformer.transformer_vjp
    gradients = prove(*both, parameters=tree(config, 9), config=config, source=source, target=target[:, :TARGET], **masks)
    assert {"source", "target"} <= set(gradients)


def test_encode_decode_and_a_batch_and_lengths_of_1_have_gradients() -> None:
    config = CONFIG.replace(activation="gelu_erf", share_embeddings=False, tie_logits=False, feed_forward_width=2, value_size=1)
    part, keep = tree(config, 10), drawn(config)
    encoded = prove(transformer.encode, transformer.encode_vjp, parameters=part, config=config, source=SOURCE_IDS, keep=keep)
    assert {name.split(".")[1] for name in encoded} == {"source_embedding", "encoder"}
    inputs: dict[str, Any] = {"target": TARGET_IDS[:, :TARGET], "memory_bsd": normal(BATCH, SOURCE, 4), "source_mask_bs": SOURCE_IDS != 0}
    decoded = prove(transformer.decode, transformer.decode_vjp, parameters=part, config=config, **inputs, keep=keep)
    assert {name.split(".")[1] for name in decoded if name != "memory_bsd"} == {"target_embedding", "decoder", "logits"}
    # One source token, one input and one label
    config = CONFIG.replace(activation="gelu_erf", feed_forward_width=2, value_size=1, final_norm=True)
    both = transformer.training_loss, transformer.training_loss_vjp
    inputs: dict[str, Any] = {"source": np.array([[3]]), "target": np.array([[1, 4]]), "smoothing": 0.1}
    assert any(gradient.any() for gradient in prove(*both, parameters=tree(config, 11), config=config, **inputs).values())
