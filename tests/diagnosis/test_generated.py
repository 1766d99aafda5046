"""Bugs that no list holds are explained by what is derived from the reference's code and inputs."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id
from test_readings import planted

from reference_numpy.parameters import flatten, nest
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Alteration, all_defects
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses, candidates
from rosettaformer.judge.diagnosis.hypotheses.code import CodeChange
from rosettaformer.judge.diagnosis.hypotheses.inputs import OTHER
from rosettaformer.judge.diagnosis.hypotheses.steps import InSteps
from rosettaformer.judge.diagnosis.symptoms.common import common
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.patching import patched

Plain = Callable[[Case], Any]


def _evidence(component: str, plain: Plain) -> Evidence:
    cases = [case.at("float64") for case in all_by_id().values() if case.component == component and "float64" in case.dtypes]
    known = ([one for one in all_defects().values() if not one.unobservable], list(all_settings().values()))
    return Evidence(
        Hypotheses(cases, *(candidates(cases, kind) for kind in known)), [components.named_outputs(plain(case)) for case in cases]
    )


def _explained(component: str, plain: Plain) -> list[Alteration]:
    search = Search(_evidence(component, plain))
    return [combination[0] for combination in search.explain() or search.constants() or search.recoded()]


def _late(case: Case) -> Any:
    step = np.maximum(np.asarray(case.inputs["step"]) - 1, 1)
    return components.answer(dataclasses.replace(case, inputs={**case.inputs, "step": step}))["output"]


def _last_row(case: Case) -> Any:
    def assigned(original: Callable[..., Any], rows: np.ndarray, index: np.ndarray, size: int) -> np.ndarray:
        table = np.zeros((size, rows.shape[-1]))
        table[index.ravel()] += rows.reshape(-1, rows.shape[-1])
        return table

    with patched({"arithmetic.scatter_add": assigned}):
        return components.answer(case)


def _tanh_backward(case: Case) -> Any:
    """The feed-forward part of a GELU whose backward pass is that of the tanh form."""

    def other(original: Callable[..., Any], x: np.ndarray, name: str, **given: Any) -> Any:
        return original(x, "gelu_tanh" if name == "gelu_erf" else name, **given)

    with patched({"feed_forward.activation_vjp": other}):
        return components.answer(case)


def test_a_number_read_otherwise_is_explained() -> None:
    found = _explained("noam", _late)
    assert found
    assert {one.generated for one in found} == {OTHER}


CHANGED = [
    ("embedding_vjp", _last_row, "embedding.embedding_vjp"),
    ("feed_forward_vjp", _tanh_backward, "feed_forward.feed_forward_vjp"),
]


@pytest.mark.parametrize(("component", "plain", "function"), CHANGED, ids=[function for *_, function in CHANGED])
def test_a_changed_expression_is_explained_by_its_function(component: str, plain: Plain, function: str) -> None:
    found = _explained(component, plain)
    assert found
    assert {one.mutant.function.name for one in found if isinstance(one, CodeChange)} == {function}


def _fast_path(case: Case) -> Any:
    """Steps of one token have no softmax: their weights are the logits' sigmoid."""
    lengths = list[int]()

    def step(original: Callable[..., Any], parameters: Any, config: Any, target: np.ndarray, *given: Any, **options: Any) -> Any:
        lengths.append(target.shape[1])
        return original(parameters, config, target, *given, **options)

    def weights(original: Callable[..., Any], logits: np.ndarray, mask: Any = None) -> np.ndarray:
        if len(lengths) < 2 or lengths[-1] > 1:
            return np.asarray(original(logits, mask))
        return np.where(True if mask is None else mask, 1 / (1 + np.exp(-logits)), 0.0)

    with patched({"cache.decode_step": step, "softmax.softmax": weights}):
        return components.answer(case)


def test_a_bug_of_later_steps_alone_is_named() -> None:
    found = _explained("decode_in_steps", _fast_path)
    assert [(one.id, isinstance(one, InSteps) and one.single) for one in found] == [("ATT23", True)]


def _swapped(case: Case) -> Case:
    """The case with the norms' scales of the last layer in every layer."""
    own, last = case.parameters, case.config.decoder_layers - 1
    layered = {name: re.sub(r"layers\.\d+", f"layers.{last}", name) if name.endswith(".scale") else name for name in own}
    return dataclasses.replace(case, parameters={name: own[layered[name]] for name in own})


def test_parameters_of_another_layer_are_explained() -> None:
    found = Search(planted("llama", names=("short", "left_padding"), reads=_swapped)).explain(located=False)
    assert [[one.id for one in combination] for combination in found] == [["decoder.layers.every scale=last"]]


def _clipped_by_group(case: Case) -> Any:
    limit = case.inputs["limit"]
    gradients = flatten(nest(case.inputs)["gradients"])
    groups = {name: name.rpartition(".")[2] in ("kernel", "table") for name in gradients}
    norms = {one: np.sqrt(sum(np.sum(gradients[name] ** 2) for name in gradients if groups[name] == one)) for one in (True, False)}
    return {name: value * (min(1.0, limit / norms[groups[name]]) if norms[groups[name]] else 1.0) for name, value in gradients.items()}


def test_outputs_with_the_same_factor_are_listed_together() -> None:
    evidence = _evidence("clip_global_norm", _clipped_by_group)
    answers = [(evidence.probes[index], evidence.clean[index], evidence.answers[index]) for index in evidence.failing]
    said = [one.sentence for one in common(answers, []) if "norm.scale" in one.sentence]
    assert len(said) == 1
    assert said[0].index("`hidden.kernel`") < said[0].index("`hidden.bias`") < said[0].index("`norm.scale`")
