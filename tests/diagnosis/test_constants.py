"""Constants: a planted number is found, and none is found in noise."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id
from kinds import conformance, every
from messages import mentions

from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue.alteration import on_arguments, on_call, on_result
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.patching import Replaces, patched


def _queries(change: Callable[[np.ndarray], np.ndarray]) -> Replaces:
    return {"attention.scaled_dot_product_attention": on_arguments(query_bthk=change)}


def _larger_sum(true: Callable[..., Any], logits: np.ndarray, mask: Any = None) -> np.ndarray:
    hidden = logits if mask is None else np.where(mask, logits, -np.inf)
    largest = hidden.max(axis=-1, keepdims=True, initial=-1e300)
    exponential = np.exp(hidden - largest)
    return exponential / (exponential.sum(axis=-1, keepdims=True) + 1e-6)


def _zeroed_afterwards(true: Callable[..., Any], logits: np.ndarray, mask: Any = None) -> np.ndarray:
    """Fills masked scores with -1e-9 instead of -1e9, and zeroes their weights after the softmax."""
    weights = true(logits if mask is None else np.where(mask, logits, -1e-9))
    return weights if mask is None else weights * mask


def _gelu(cubic: float) -> Replaces:
    def gelu(true: Callable[..., Any], x: np.ndarray, name: str) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + cubic * x**3)))

    return {"feed_forward.activation": gelu}


def _half_of(only: str = "") -> Replaces:
    """Adds half of the outputs of sub-layers, or of one of them."""
    half = on_call(lambda name, y_btd, **rest: {"y_btd": y_btd * (1 if only and name != only else 0.5)})
    return {"layers.residual_out": half}


# a constant, with its value -> the component, the functions that have it, and the only places that do
PLANTED: dict[str, tuple[str, Replaces, str]] = {
    "mask.share=-1e-09": ("multi_head_attention", {"softmax.softmax": _zeroed_afterwards}, ""),
    "softmax.sum=1e-06": ("multi_head_attention", {"softmax.softmax": _larger_sum}, ""),
    "epsilon=0.0003": ("layer_norm", {"normalization.layer_norm": on_arguments(epsilon=3e-4)}, ""),
    "relu.slope=0.01": (
        "feed_forward", {"feed_forward.activation": lambda true, x, name: np.where(x > 0, x, 0.01 * x)}, "",
    ),
    "gelu_tanh.cubic=0.04715": ("feed_forward", _gelu(0.04715), ""),
    "gelu_tanh.cubic=0.044714998": ("feed_forward", _gelu(float(np.float32(0.044715))), ""),
    "residual.output=0.5": ("encoder_layer", _half_of("feed_forward"), "feed_forward"),
    "logits.factor=1.42857": ("transformer", {"embedding.logits": on_result(lambda x: x / 0.7)}, ""),
    "attention.scale=0.37": ("multi_head_attention", _queries(lambda query: 0.37 * query), ""),
}  # fmt: skip


def _search(cases: Sequence[Case], replaces: Replaces, noise: float = 0.0) -> Search:
    """Returns the search on the outputs of the reference with these functions replaced, and noise."""
    rng = np.random.default_rng(0)
    with patched(replaces):
        answers = [components.answer(case) for case in cases]
    for answer in answers if noise else ():
        answer |= {name: y + noise * rng.standard_normal(y.shape) for name, y in answer.items()}
    return Search(Evidence(Hypotheses(cases, []), answers))


def _cases(component: str) -> list[Case]:
    asked = (case for case in all_by_id().values() if not case.excluded)
    return [case.at("float64") for case in asked if case.component == component]


@pytest.mark.parametrize("id_", every(2, PLANTED))
def test_a_planted_constant_is_found_with_its_value(id_: str) -> None:
    component, replaces, place = PLANTED[id_]
    curve = {"relu.slope": "relu", "gelu_tanh.cubic": "gelu_tanh"}.get(id_.partition("=")[0])
    cases = [case for case in _cases(component) if curve in (None, case.config.activation)]
    (combination,) = _search(cases[: 2 if component == "transformer" else 6], replaces).constants()
    assert [one.id for one in combination] == [id_]
    assert str(combination[0].place or "") == place


@pytest.mark.parametrize("component", ["layer_norm", "multi_head_attention", "encoder_layer", conformance("transformer")])
def test_noise_has_no_constant_and_a_correct_port_none(component: str) -> None:
    for noise in (1e-3, 0.0):
        assert _search(_cases(component)[:2], {}, noise).constants() == []


def test_one_number_is_no_evidence_and_constants_that_give_the_same_answers_are_both_named() -> None:
    """Some epsilon explains any loss; a second case would show that labels with id 0 are ignored."""
    without_0 = {"loss.cross_entropy": on_call(lambda label_bt, **rest: {"mask_bt": label_bt != 0})}
    assert _search([all_by_id()["training_loss/gpt2"].at("float64")], without_0).constants() == []
    # norm(2 x + y) is norm(x + y / 2) for a negligible epsilon
    case = all_by_id()["encoder_layer/post"].at("float64")
    case = dataclasses.replace(case, config=case.config.replace(epsilon=1e-30))
    found = _search([case], _half_of()).constants()
    assert {one.id for (one,) in found} == {"residual.input=2", "residual.output=0.5"}


def _of_width(true: Callable[..., Any], parameters: Any, x_btd: np.ndarray, **named: Any) -> np.ndarray:
    return true(parameters, x_btd, **named) / x_btd.shape[-1] ** 0.5


@pytest.mark.parametrize(
    ("component", "names", "replaces", "title"),
    [
        ("logits", ("bias", "no_bias"), {"embedding.logits": _of_width}, "logits … 1/sqrt(model_width)"),
        (
            "multi_head_attention",
            ("square", "cross"),
            _queries(lambda query: query / query.shape[-1] ** 0.5),
            "logits … 1/sqrt(key_size)",
        ),
    ],
)
def test_a_factor_that_is_a_size_of_each_case_is_found_by_its_name(
    component: str, names: Sequence[str], replaces: Replaces, title: str
) -> None:
    """For one width in all cases, and for two."""
    cases = [all_by_id()[f"{component}/{name}"].at("float64") for name in names]
    assert any(mentions(one.title, title) for (one,) in _search(cases, replaces).constants())
