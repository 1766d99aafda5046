"""Constants: a number that was planted is found, and none is found in noise."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from expectations import all_by_id
from kinds import conformance, every
from messages import mentions

from reference_numpy import attention, embedding, feed_forward, layers, loss, normalization, softmax
from rosettaformer.conformance.diagnosis.hypotheses import Hypotheses
from rosettaformer.conformance.diagnosis.search import Search
from rosettaformer.conformance.reference import components

Function = Callable[..., Any]


def _epsilon(true: Function) -> Function:
    return lambda parameters, x_btd, epsilon, *flags, **named: true(parameters, x_btd, 3e-4, *flags, **named)


def _slope(true: Function) -> Function:
    return lambda x, name: np.where(x > 0, x, 0.01 * x)


def _gelu(cubic: float) -> Callable[[Function], Function]:
    return lambda true: lambda x, name: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + cubic * x**3)))


def _half_residual(true: Function) -> Function:
    return lambda p, c, name, x, y, keep: true(p, c, name, x, 0.5 * y, keep) if name == "feed_forward" else true(p, c, name, x, y, keep)


def _logits(true: Function) -> Function:
    return lambda p, x, *rest, **named: true(p, x, *rest, **named) / 0.7


def _of_width(true: Function) -> Function:
    return lambda parameters, x_btd, **named: true(parameters, x_btd, **named) / x_btd.shape[-1] ** 0.5


def _of_heads(true: Function) -> Function:
    return lambda query, *rest, **options: true(query / query.shape[-1] ** 0.5, *rest, **options)


def _scaled(true: Function) -> Function:
    return lambda query, *rest, **options: true(0.37 * query, *rest, **options)


def _larger_sum(true: Function) -> Function:
    def softmax(logits: np.ndarray, mask: Any = None) -> np.ndarray:
        hidden = logits if mask is None else np.where(mask, logits, -np.inf)
        largest = hidden.max(axis=-1, keepdims=True, initial=-1e300)
        exponential = np.exp(hidden - largest)
        return exponential / (exponential.sum(axis=-1, keepdims=True) + 1e-6)

    return softmax


def _zeroed_afterwards(true: Function) -> Function:
    """The Annotated Transformer's attention with a sign lost: masked scores are -1e-9, and their weights 0 after the softmax."""

    def softmax(logits: np.ndarray, mask: Any = None) -> np.ndarray:
        weights = true(logits if mask is None else np.where(mask, logits, -1e-9))
        return weights if mask is None else weights * mask

    return softmax


PLANTED = {
    "mask.share=-1e-09": ("multi_head_attention", softmax, "softmax", _zeroed_afterwards, ""),
    "softmax.sum=1e-06": ("multi_head_attention", softmax, "softmax", _larger_sum, ""),
    "epsilon=0.0003": ("layer_norm", normalization, "layer_norm", _epsilon, ""),
    "relu.slope=0.01": ("feed_forward", feed_forward, "activation", _slope, ""),
    "gelu_tanh.cubic=0.04715": ("feed_forward", feed_forward, "activation", _gelu(0.04715), ""),
    "gelu_tanh.cubic=0.044714998": ("feed_forward", feed_forward, "activation", _gelu(float(np.float32(0.044715))), ""),
    "residual.output=0.5": ("encoder_layer", layers, "residual_out", _half_residual, "feed_forward"),
    "logits.factor=1.42857": ("transformer", embedding, "logits", _logits, ""),
    "attention.scale=0.37": ("multi_head_attention", attention, "scaled_dot_product_attention", _scaled, ""),
}


def _search(id_: str) -> Search:
    component, module, name, wrong, _ = PLANTED[id_]
    curve = {"relu.slope": "relu", "gelu_tanh.cubic": "gelu_tanh"}.get(id_.partition("=")[0])
    cases = [case.at("float64") for case in all_by_id().values() if case.component == component and not case.excluded]
    cases = [case for case in cases if curve in (None, case.config.activation)][: 2 if component == "transformer" else 6]
    with mock.patch.object(module, name, wrong(getattr(module, name))):
        answers = [components.answer(case) for case in cases]
    return Search(Hypotheses(cases, []), answers)


@pytest.mark.parametrize("id_", every(2, PLANTED))
def test_a_planted_constant_is_found_with_its_value(id_: str) -> None:
    (combination,) = _search(id_).constants()
    assert [one.id for one in combination] == [id_]
    assert str(combination[0].place or "") == PLANTED[id_][-1]


@pytest.mark.parametrize("component", ["layer_norm", "multi_head_attention", "encoder_layer", conformance("transformer")])
def test_noise_has_no_constant_and_a_correct_port_none(component: str) -> None:
    cases = [case.at("float64") for case in all_by_id().values() if case.component == component and not case.excluded][:2]
    noise = np.random.default_rng(0)
    answers = [
        {name: value + 1e-3 * noise.standard_normal(value.shape) for name, value in components.answer(case).items()} for case in cases
    ]
    assert Search(Hypotheses(cases, []), answers).constants() == []
    assert Search(Hypotheses(cases, []), [components.answer(case) for case in cases]).constants() == []


def test_one_number_is_no_evidence_and_constants_that_give_the_same_answers_are_both_named() -> None:
    """Some epsilon gives any loss; a second case would tell it from what the port has, which here leaves out the labels with id 0."""
    case = all_by_id()["training_loss/gpt2"].at("float64")
    true = loss.cross_entropy
    with mock.patch.object(loss, "cross_entropy", lambda x, label, mask, *rest: true(x, label, label != 0, *rest)):
        answers = [components.answer(case)]
    assert Search(Hypotheses([case], []), answers).constants() == []
    # norm(2 x + y) is norm(x + y / 2) where epsilon is next to nothing
    case = all_by_id()["encoder_layer/post"].at("float64")
    case = dataclasses.replace(case, config=case.config.replace(epsilon=1e-30))
    true = layers.residual_out
    with mock.patch.object(layers, "residual_out", lambda p, c, name, x, y, *rest: true(p, c, name, x, 0.5 * y, *rest)):
        answers = [components.answer(case)]
    found = Search(Hypotheses([case], []), answers).constants()
    assert {one.id for (one,) in found} == {"residual.input=2", "residual.output=0.5"}


@pytest.mark.parametrize(("cases", "module", "name", "wrong", "title"), [
    (("logits/bias", "logits/no_bias"), embedding, "logits", _of_width, "logits … 1/sqrt(model_width)"),
    (("multi_head_attention/square", "multi_head_attention/cross"), attention, "scaled_dot_product_attention", _of_heads,
     "logits … 1/sqrt(key_size)"),
])  # fmt: skip
def test_a_factor_that_is_a_size_of_each_case_is_found_by_its_name(
    cases: Sequence[str], module: Any, name: str, wrong: Callable[[Function], Function], title: str
) -> None:
    """Of one width in all cases, and of two."""
    chosen = [all_by_id()[id_].at("float64") for id_ in cases]
    with mock.patch.object(module, name, wrong(getattr(module, name))):
        answers = [components.answer(case) for case in chosen]
    assert any(mentions(one.title, title) for (one,) in Search(Hypotheses(chosen, []), answers).constants())
