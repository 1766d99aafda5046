"""The cases cover every argument of every component, and behavior that ordinary values hide."""

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id

from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components

CASES = sorted((case for case in all_by_id().values() if not components.forward_of(case.component)), key=lambda case: case.size)


def _optional(component: str) -> list[str]:
    """Returns the arguments that a case may omit and that the config does not decide; for a single layer it decides about the first."""
    fields = components.COMPONENTS[component].arguments
    parameters = components.signature_of(component).parameters.values()
    return [one.name for one in parameters if one.default is not inspect.Parameter.empty and one.name not in (*fields, "config", "layer")]


OPTIONAL = [
    (component, name) for component in (*components.FORWARD, *components.DECODING, *components.TRAINING) for name in _optional(component)
]


def _without(case: Case, argument: str) -> Case:
    return dataclasses.replace(case, inputs={name: value for name, value in case.inputs.items() if name.partition(".")[0] != argument})


def _answer(case: Case) -> Any:
    try:
        return components.answer(case)
    except ValueError:  # the argument is required
        return {}


def _matters(case: Case, argument: str) -> bool:
    """Whether the case passes the argument and the reference's output changes without it."""
    less = _without(case, argument)
    if len(less.inputs) == len(case.inputs):
        return False
    given, left_out = _answer(case), _answer(less)
    return given.keys() != left_out.keys() or not all(np.allclose(given[name], left_out[name], rtol=1e-3) for name in given)


@pytest.mark.parametrize(("component", "argument"), OPTIONAL)
def test_every_argument_matters_in_a_case(component: str, argument: str) -> None:
    assert any(_matters(case, argument) for case in CASES if case.component == component)


@pytest.mark.parametrize("component", ["token_mask", "transformer", "greedy_search"])
def test_the_padding_id_0_is_asked(component: str) -> None:
    """Python code may treat 0 like None."""
    zero = [case for case in CASES if case.component == component and case.config.padding_id == 0]
    none = [dataclasses.replace(case, config=case.config.replace(padding_id=None)) for case in zero]
    assert any(not np.array_equal(*(next(iter(_answer(one).values())) for one in pair)) for pair in zip(zero, none, strict=True))


FIELDS = (
    "query_key_value_bias", "attention_output_bias", "key_value_heads", "activation", "norm_placement",
    "final_norm", "epsilon",
)  # fmt: skip


@pytest.mark.parametrize("component", ["encoder", "decoder", "transformer"])
def test_every_stack_is_asked_with_grouped_heads_and_without_biases(component: str) -> None:
    configs = [case.config for case in CASES if case.component == component]
    assert not [field for field in FIELDS if len({getattr(config, field) for config in configs}) == 1]
