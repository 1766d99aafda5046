"""Symptoms: a planted change of an output is found and described correctly; noise and correct ports have none."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import flat
import ml_dtypes
import numpy as np
import pytest
from expectations import all_by_id, expect
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import conformance, every
from messages import mentions
from random_cases import COMPONENTS, random_case

from reference_numpy import normalization
from reference_numpy.parameters import nest
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses, candidates
from rosettaformer.judge.diagnosis.symptoms import Symptom, axes, describe
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.expectation.patching import patched

Outputs = dict[str, np.ndarray]
Plant = Callable[[Case, np.ndarray], np.ndarray]
STRONG = 80  # coverage at which a symptom describes the whole output
SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=8, deadline=None)


@functools.cache
def _suite(component: str) -> tuple[list[Case], list[dict[str, tolerance.Expectation]]]:
    cases = [case.at("float64") for case in all_by_id().values() if case.component == component and "float64" in case.dtypes]
    return cases, [expect(case) for case in cases]


def _random_cases(component: str, seed: int, count: int = 4) -> list[Case]:
    found: list[Case] = []
    while len(found) < count:
        case, seed = random_case(seed, component), seed + 1
        if components.answer(case)["output"].size > 40:
            found.append(case.at("float64"))
    return found


def _planted(cases: Sequence[Case], plant: Plant, output: str = "output") -> list[Outputs]:
    answers = [components.answer(case) for case in cases]
    return [
        {name: np.array(plant(case, value)) if name == output else value for name, value in answer.items()}
        for case, answer in zip(cases, answers, strict=True)
    ]


def _said(component: str, plant: Plant, output: str = "output") -> list[Symptom]:
    """Returns the symptoms of a component's cases with a planted change in their outputs."""
    cases, clean = _suite(component)
    return describe(cases, _planted(cases, plant, output), clean=clean)


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exponential = np.exp(x - x.max(axis, keepdims=True))
    return exponential / exponential.sum(axis, keepdims=True)


# --- no symptoms without a change

# the same parts make up another division of the model
FORWARD = [pytest.param(name) for name in components.FORWARD]
FORWARD = [conformance(one) if components.is_layout(one.values[0]) else one for one in FORWARD]


@pytest.mark.parametrize("component", every(4, FORWARD))
def test_a_correct_port_gets_none(component: str) -> None:
    cases, clean = _suite(component)
    assert describe(cases, [components.answer(case) for case in cases], clean=clean) == []


@pytest.mark.parametrize("component", every(15, [conformance(one) if one.values[0] == "transformer" else one for one in FORWARD]))
@pytest.mark.parametrize("size", [1e-3, *map(conformance, (1e-11, 1e-9, 1e-7, 0.1, 10.0))])
def test_noise_gets_none_that_says_all_of_the_output(component: str, size: float) -> None:
    cases, clean = _suite(component)
    rng = np.random.default_rng(0)
    for part in (1.0, 0.4):  # of the rows
        answers = []
        for expectations in clean:
            answer = {}
            for name, one in expectations.items():
                value = one.reference
                if one.dtype.kind in "biu":
                    answer[name] = rng.permutation(value.reshape(-1)).reshape(value.shape).astype(one.dtype)
                    continue
                rows = rng.random((*value.shape[:-1], 1)) < part
                answer[name] = value + rows * size * rng.standard_normal(value.shape) * np.abs(value).max(
                    initial=1e-9, where=np.isfinite(value)
                )
            answers.append(answer)
        found = describe(cases, answers, clean=clean)
        assert [one for one in found if one.specificity >= STRONG] == []
        assert part < 1 or {one.kind for one in found} <= {"rounding"}


@pytest.mark.conformance
@few
@given(SEEDS, st.sampled_from(COMPONENTS), st.sampled_from([1e-10, 1e-6, 1e-2, 1.0]))
def test_noise_on_random_configurations_gets_none(seed: int, component: str, size: float) -> None:
    cases = _random_cases(component, seed % 10**6, 2)
    rng = np.random.default_rng(seed)
    answers = _planted(cases, lambda case, value: value + size * rng.standard_normal(value.shape) * np.abs(value).max())
    assert [one for one in describe(cases, answers) if one.specificity >= STRONG] == []


# --- a planted change is found: random configurations

PLANTS: dict[str, tuple[str, Plant]] = {
    "times sqrt(model_width)": ("times sqrt(model_width)", lambda case, value: value * case.config.model_width**0.5),
    "over sqrt(model_width)": ("times 1/sqrt(model_width)", lambda case, value: value / case.config.model_width**0.5),
    "minus": ("times -1", lambda case, value: -value),
    "half": ("times 1/2", lambda case, value: value / 2),
    "an odd number": ("times 1.2345", lambda case, value: value * 1.2345),
    "a constant": ("0.25", lambda case, value: value + 0.25),
    "softmax": ("softmax … axis", lambda case, value: _softmax(value)),
    "log-softmax": ("log-softmax", lambda case, value: np.log(_softmax(value))),
    "relu": ("relu of the reference", lambda case, value: np.maximum(value, 0)),
    "reversed features": ("features in reverse order", lambda case, value: value[..., ::-1]),
    "zeros": ("is 0 everywhere", lambda case, value: np.zeros(value.shape)),
    "float32": ("rounded to float32", lambda case, value: value.astype(np.float32).astype(np.float64)),
    "bfloat16": ("rounded to bfloat16", lambda case, value: value.astype(ml_dtypes.bfloat16).astype(np.float64)),
}


@pytest.mark.parametrize("name", every(15, PLANTS))
@few
@given(SEEDS, st.sampled_from(["layer_norm", "feed_forward", "multi_head_attention", "encoder_layer", "decoder_layer", "transformer"]))
def test_a_planted_relation_is_found_on_random_configurations(name: str, seed: int, component: str) -> None:
    words, plant = PLANTS[name]
    if name == "reversed features" and component == "transformer":
        words = "vocabulary in reverse order"
    cases = _random_cases(component, seed % 10**6, 3)
    found = describe(cases, _planted(cases, plant))
    assert found, "nothing is said"
    assert any(mentions(one.sentence, words) for one in found), found


@pytest.mark.conformance
@few
@given(SEEDS)
def test_the_first_positions_alone_are_wrong(seed: int) -> None:
    cases = [case for case in _random_cases("layer_norm", seed % 10**6, 8) if case.inputs["x_btd"].shape[1] > 3][:3]
    rng = np.random.default_rng(seed)
    answers = _planted(cases, lambda case, value: np.concatenate([value[:, :2], value[:, 2:] + rng.standard_normal(value[:, 2:].shape)], 1))
    assert "but the first 2" in describe(cases, answers)[0].sentence


def _merged(original: Callable[..., Any], *given: Any, **options: Any) -> np.ndarray:
    output = original(*given, **options)
    return output.transpose(0, 2, 1, 3).reshape(output.shape)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("component", "place", "function", "id_"),
    [
        ("feed_forward", "feed_forward.activation", lambda original, x, name: x, "FFN4"),
        ("feed_forward", "feed_forward.activation", lambda original, x, name: np.tanh(x), "activation=tanh"),
        ("transformer", "stacks.decoder", lambda original, own, config, x, *rest: x, "transformer.decoder.output=its x_btd"),
        ("multi_head_attention", "attention.scaled_dot_product_attention", _merged, "MHA2"),
    ],
)
def test_what_goes_wrong_within_a_model_is_an_alteration_and_needs_no_sentence(
    component: str, place: str, function: Callable[..., Any], id_: str
) -> None:
    cases = _suite(component)[0][:6]
    with patched({place: function}):
        answers = [components.answer(case) for case in cases]
    kinds = (candidates(cases, some.values()) for some in (all_defects(), all_settings()))
    assert id_ in [one.id for (one,) in Search(Evidence(Hypotheses(cases, *kinds), answers)).explain(located=False)]


def test_heads_weights_masks_and_axes_are_named() -> None:
    def over_heads(case: Case, weights: np.ndarray) -> np.ndarray:
        total = weights.sum(1, keepdims=True)
        return weights / np.where(total, total, 1.0)

    found = _said("multi_head_attention", over_heads, "weights")
    assert "your weights sum to 1 over heads, not over keys" in [one.sentence for one in found]
    cases, clean = _suite("scaled_dot_product_attention")
    for words, change in (("without `mask_bhts`: it is ignored", lambda mask: None), ("with `mask_bhts` inverted", np.logical_not)):
        masks = [{"mask_bhts": change(case.inputs["mask_bhts"])} if "mask_bhts" in case.inputs else {} for case in cases]
        answers = [components.answer(dataclasses.replace(case, inputs=case.inputs | own)) for case, own in zip(cases, masks, strict=True)]
        assert any(mentions(one.sentence, words) for one in describe(cases, answers, clean=clean))
    with mock.patch.dict(axes.OUTPUTS):
        del axes.OUTPUTS["layer_norm"]
        assert any("its axis 1 in reverse order" in one.sentence for one in _said("layer_norm", lambda case, y: y[:, ::-1]))


def _nan_at_padding(case: Case, value: np.ndarray) -> np.ndarray:
    padding = case.inputs["target"] == case.config.padding_id
    return value if padding.ndim == 3 else np.where(padding[..., None], np.nan, value)


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape)


def _in_a_head(case: Case, value: np.ndarray) -> np.ndarray:
    kernel_ed = case.parameters["output.kernel"][0]
    return value + _noise(*value.shape[:2], len(kernel_ed)) @ kernel_ed


def _one_head(case: Case, value: np.ndarray) -> np.ndarray:
    return np.concatenate([3 * value[:, :, :1], value[:, :, 1:]], 2)


def _by_placement(case: Case, value: np.ndarray) -> np.ndarray:
    return -value if case.config.norm_placement == "post" else np.cumsum(value, 1)


# component, planted change, and the text of one symptom
PARTIAL: list[tuple[str, Plant, str]] = [
    ("transformer", lambda case, y: y.swapaxes(0, 1), "batch and positions exchanged"),
    ("transformer", _nan_at_padding, "NaN … `target`"),
    ("decoder", lambda case, y: np.concatenate([y[:, :1], y[:, :-1]], 1), "shifted by 1 along its positions"),
    ("scaled_dot_product_attention", _one_head, "first head … times 3"),
    ("encoder_layer", _by_placement, "norm_placement … times -1"),
    ("encoder_layer", lambda case, y: y + _noise(y.shape[-1]), "feature"),
    ("multi_head_attention", _in_a_head, "head 0 of `output.kernel`"),
    ("logits", lambda case, y: y - case.parameters.get("bias", 0), "minus … `bias`"),
    ("logits", lambda case, y: y + case.parameters.get("bias", 0), "`bias` … twice"),
]


@pytest.mark.parametrize(("component", "plant", "words"), every(4, PARTIAL))
def test_what_is_wrong_in_a_part_of_the_output_is_said(component: str, plant: Plant, words: str) -> None:
    found = _said(component, plant)
    assert any(mentions(one.sentence, words) for one in found), found


def _own_layer(case: Case, mistake: str) -> np.ndarray:
    """Returns an encoder layer as in a tutorial, with one bug."""
    p: Any = nest(case.parameters)
    x, mask, epsilon = case.inputs["x_btd"], None if mistake == "mask" else case.inputs.get("mask_bhts"), case.config.epsilon
    h = normalization.layer_norm(p["self_attention_norm"], x + flat.multi_head_attention(p["self_attention"], x, x, mask), epsilon)
    hidden, output, norm = p["feed_forward"]["hidden"], p["feed_forward"]["output"], p["feed_forward_norm"]
    y = np.maximum(h @ hidden["kernel"] + hidden["bias"], 0) @ output["kernel"] + (0 if mistake == "bias" else output["bias"])
    norm = norm | {"offset": 0 * norm["offset"]} if mistake == "offset" else norm
    return h + y if mistake == "no norm" else normalization.layer_norm(norm, h + y, epsilon)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("", ""),
        ("mask", "without `mask_bhts`: it is ignored"),
        ("bias", "without `feed_forward.output.bias`"),
        ("no norm", "`feed_forward_norm` is left out"),
        ("offset", "minus … `feed_forward_norm.offset`: it is left out"),
    ],
)
def test_a_layer_of_its_own_with_one_mistake(mistake: str, words: str) -> None:
    found = describe(PLAIN_LAYERS, [{"output": _own_layer(case, mistake)} for case in PLAIN_LAYERS], list(map(expect, PLAIN_LAYERS)))
    assert any(mentions(one.sentence, words) for one in found) if mistake else found == [], found


def _is_plain(case: Case) -> bool:
    config, keep = case.config, any(name.startswith("keep") for name in case.inputs)
    mask = case.inputs.get("mask_bhts")
    full = mask is None or bool(mask.any(-1).all())
    same = config.heads == config.key_value_heads
    return config.norm_placement == "post" and config.activation == "relu" and config.attention_bias and same and full and not keep


PLAIN_LAYERS = [case.at("float64") for case in all_by_id().values() if case.component == "encoder_layer" and _is_plain(case)]
