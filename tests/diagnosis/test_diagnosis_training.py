"""Patterns that the incorrect outputs of losses, optimizers and searches share."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from expectations import all_by_id
from messages import mentions

from rosettaformer.judge.case import Case
from rosettaformer.judge.compare import compare
from rosettaformer.judge.diagnosis.symptoms.common import common
from rosettaformer.judge.expectation import components, tolerance

Outputs = dict[str, np.ndarray]


def _longer_steps(case: Case, right: Outputs) -> Outputs:
    starts = np.cumsum((0, *case.inputs["splits"]))
    for start, end in itertools.pairwise(starts):
        right["output"][:, start:end] *= 1.5 if end - start > 1 else 1.0
    return right


def _same_ids(case: Case, right: Outputs) -> Outputs:
    right["token_bn"][:, 1:] = 9
    return right


def _later(case: Case, right: Outputs) -> Outputs:
    """Replaces the rate where the reference's falls."""
    late = np.asarray(case.inputs["step"]) > case.inputs["warmup"]
    return {"output": np.asarray(np.where(late, 0.9 * right["output"], right["output"]))}


# component, the fault, and the sentences that describe it
COMMON: dict[str, tuple[str, Callable[[Case, Outputs], Outputs], list[str]]] = {
    "longer steps": ("decode_in_steps", _longer_steps, ["step is longer"]),
    "ids": ("greedy_search", _same_ids, ["ids differ … log-probabilities", "first token"]),
    "scores": ("beam_search", lambda case, right: _plus(right, 0.1, "score"), ["scores differ … ids"]),
    "after the warm-up": ("noam", _later, ["only where step is above warmup", "first step"]),
    "smoothed": (
        "cross_entropy",
        lambda case, right: _plus(right, case.inputs.get("smoothing", 0.0)),
        ["only where smoothing is given"],
    ),
    "decay": (
        "adam",
        lambda case, right: _plus(right, case.inputs["weight_decay"], "parameters", "kernel"),
        ["only where weight_decay is given", "`kernel`"],
    ),
    "moments": ("adam", lambda case, right: _plus(right, 1.0, "first"), ["first moments … second"]),
}


def _plus(right: Outputs, number: float, start: str = "", end: str = "") -> Outputs:
    chosen = {name for name in right if name.startswith(start) and name.endswith(end)}
    return right | {name: np.asarray(right[name] + number) for name in chosen}


@pytest.mark.parametrize("name", COMMON)
def test_what_the_wrong_answers_have_in_common_is_said(name: str) -> None:
    component, plant, sentences = COMMON[name]
    cases = [
        case.at("float64") for case in all_by_id().values() if case.component == component and not case.excluded and case.name != "long"
    ]
    cases = cases[:10] if component in components.SEARCHES else cases
    answers = [plant(case, {name: np.array(value) for name, value in components.answer(case).items()}) for case in cases]
    clean = [{name: tolerance.expectation(value, [value]) for name, value in components.answer(case).items()} for case in cases]
    wrong = [any(compare(one[name], answer[name]).excess > 1 for name in one) for one, answer in zip(clean, answers, strict=True)]
    failing = [each for each, off in zip(zip(cases, clean, answers, strict=True), wrong, strict=True) if off]
    found = "\n".join(one.sentence for one in common(failing, [case for case, off in zip(cases, wrong, strict=True) if not off]))
    assert all(mentions(found, sentence) for sentence in sentences), found
