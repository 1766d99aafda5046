"""Gradients of attention and of whole models, every element, against differences of the forward function.

`test_reference_gradient_properties` tests gradients of every config along directions; the 50-digit tests cover the parts.
The oracle is a Richardson-extrapolated central difference of `<cotangent, forward(x)>` in float64: (4 D(h/2) - D(h)) / 3,
whose error is of order h^4.
"""

from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
from kinds import conformance
from strategies import tree

from reference_numpy import parameters, preset, sites, transformer
from reference_numpy.values import Text

RELATIVE = 1e-7  # relative to the largest element of a gradient
STEP = 2e-4  # its fourth power is below rounding, and such small steps rarely cross the corner of a ReLU
EPS = float(np.finfo(np.float64).eps)
ROUNDINGS = 64  # roundings per term of the differentiated scalar; the difference divides them by the step
CONFIG = preset("tiny", source_vocabulary=5, target_vocabulary=5, model_width=4, heads=2, key_value_heads=1, key_size=1, value_size=2,
                feed_forward_width=3, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True, epsilon=1e-3,
                dropout_rate=0.3, attention_dropout_rate=0.2, hidden_dropout_rate=0.4)  # fmt: skip
BATCH, TARGET, SOURCE = 2, 3, 4


def differences(scalar: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """Returns the derivative of scalar() with respect to every element of an array that it reads."""
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
    values = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in parameters.flatten(inputs).items()}
    inputs = parameters.nest(values)
    output = forward(**inputs)
    cotangent = np.random.default_rng(99).normal(size=output.shape)
    gradients = parameters.flatten(vjp(**inputs, cotangent=cotangent))
    floating = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
    assert set(gradients) == set(floating)
    rounding = ROUNDINGS * EPS * np.abs(cotangent * output).sum() / STEP
    for name, value in floating.items():
        expected = differences(lambda: float((cotangent * forward(**inputs)).sum()), value)
        gradient = gradients[name]
        assert (gradient.shape, gradient.dtype) == (value.shape, value.dtype), name
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=RELATIVE * np.abs(expected).max(initial=0) + rounding, err_msg=name)
    return gradients


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape)


def chance(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).random(shape) < 0.7


HEADS = {
    "query_bthk": normal(BATCH, TARGET, CONFIG.heads, CONFIG.key_size),
    "key_bsgk": normal(BATCH, SOURCE, CONFIG.key_value_heads, CONFIG.key_size),
    "value_bsge": normal(BATCH, SOURCE, CONFIG.key_value_heads, CONFIG.value_size),
}


@pytest.mark.parametrize("shape", [(1, 1, 1, SOURCE), (BATCH, 1, TARGET, 1), (1, 2, 1, 1), (1, 1, 1, 1), (1, 2, TARGET, SOURCE)])
def test_attention_with_a_bias_that_is_broadcast(shape: tuple[int, ...]) -> None:
    both = flat.scaled_dot_product_attention, flat.scaled_dot_product_attention_vjp
    prove(*both, **HEADS, bias_bhts=normal(*shape), mask_bhts=chance(1, 1, TARGET, SOURCE))


def test_attention_with_more_queries_than_keys_leaves_the_first_without_one() -> None:
    both = flat.scaled_dot_product_attention, flat.scaled_dot_product_attention_vjp
    inputs = HEADS | {"query_bthk": normal(BATCH, SOURCE + 2, 2, 1)}
    gradients = prove(*both, **inputs, causal=True)
    assert not gradients["query_bthk"][:, :2].any()
    assert gradients["query_bthk"][:, 3:].all()


@pytest.mark.parametrize("tie", [True, conformance(False)])
def test_transformer_of_soft_tokens_and_given_masks(tie: bool) -> None:
    config = CONFIG.replace(activation="gelu_tanh", tie_logits=tie, feed_forward_width=2, value_size=1)
    source, target = np.random.default_rng(8).dirichlet(np.ones(5), (2, BATCH, SOURCE))
    masks: dict[str, Any] = {"source_mask_bs": np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool), "target_mask_bt": chance(BATCH, TARGET)}
    inputs = {"source": source, "target": target[:, :TARGET]}
    inputs["keep"] = sites.draw(config, BATCH, SOURCE, TARGET, np.random.default_rng(3))

    def texts(source: np.ndarray, target: np.ndarray, **others: Any) -> dict[str, Any]:
        return others | {"source": Text(source, masks["source_mask_bs"]), "target": Text(target, masks["target_mask_bt"])}

    def forward(**given: Any) -> np.ndarray:
        return transformer.transformer(**texts(**given))

    def vjp(**given: Any) -> dict[str, Any]:
        return transformer.transformer_vjp(**texts(**given))

    prove(forward, vjp, parameters=tree(config, 9), config=config, **inputs)
