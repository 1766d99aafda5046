"""Diagnosis of gradients, losses and optimisers, on ports that make a mistake in their framework's own way."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from expectations import all_by_id
from in_process import InProcess

from rosettaformer.conformance.case import Case
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.diagnosis import diagnose, subject
from rosettaformer.conformance.diagnosis.common import common
from rosettaformer.conformance.reference import components, tolerance

# the name of a file, the defect, and a port that has it
PORTS = {
    "tied by copying": (
        "logits_copied_table",
        "EMB5",
        """
import torch
from impl_torch.transformer import Transformer

framework = "torch"
config = {"tie_logits": True, "share_embeddings": True}

class Copied(Transformer):
    def __init__(self, config):
        super().__init__(config)
        head = self.logits

        def forward(x_btd):
            bias = None if head.bias is None else head.bias
            return torch.nn.functional.linear(x_btd, self.target_embedding.table.detach(), bias)

        head.forward = forward

components = {"transformer": lambda config, dtype: Copied(config)}
""",
    ),
    "Keras' Adam": (
        "adam",
        "OPT1",
        """
import numpy as np
from reference_numpy import parameters as P

def adam(case):
    given = P.nest(case.inputs)
    flat = {part: P.flatten(given[part]) for part in ("parameters", "gradients", "first_moment", "second_moment")}
    n, b1, b2 = given["step"], given["beta_1"], given["beta_2"]
    result = {"parameters": {}, "first_moment": {}, "second_moment": {}}
    for name, p in flat["parameters"].items():
        g, kind = flat["gradients"][name], p.dtype.type
        m = kind(b1) * flat["first_moment"][name] + kind(1 - b1) * g
        v = kind(b2) * flat["second_moment"][name] + kind(1 - b2) * g * g
        if given["weight_decay"] and name.rpartition(".")[2] in ("kernel", "table"):
            p = p - p * kind(given["weight_decay"]) * kind(given["learning_rate"])
        alpha = kind(given["learning_rate"] * np.sqrt(1 - b2**n) / (1 - b1**n))
        result["parameters"][name] = p - alpha * m / (np.sqrt(v) + kind(given["epsilon"]))
        result["first_moment"][name], result["second_moment"][name] = m, v
    return {part: P.nest(tree) for part, tree in result.items()}
""",
    ),
    "smoothing over the others": (
        "cross_entropy",
        "LOS1",
        """
import torch
from impl_torch.loss import cross_entropy as right

framework = "torch"

def cross_entropy(logits_btv, label_bt, mask_bt=None, smoothing=0.0, total=None):
    x = logits_btv.float() if logits_btv.dtype.itemsize == 2 else logits_btv
    size = x.shape[-1]
    q = torch.full_like(x, smoothing / (size - 1)).scatter(-1, label_bt.long()[..., None], 1 - smoothing)
    loss_bt = -(q * x.log_softmax(-1)).sum(-1)
    mask_bt = torch.ones_like(label_bt, dtype=torch.bool) if mask_bt is None else mask_bt
    total = mask_bt.sum().clamp(min=1) if total is None else total
    return (loss_bt.masked_fill(~mask_bt, 0).sum() / total).to(logits_btv.dtype)

components = {"cross_entropy": lambda config, dtype: cross_entropy}
""",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.exhaustive if name.startswith("tied") else ()) for name in PORTS])
def test_a_mistake_of_training_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file, defect, text = PORTS[name]
    if "import torch" in text:
        pytest.importorskip("torch")
    monkeypatch.setattr(subject, "open_worker", InProcess)
    port = tmp_path / f"{file}_port.py"
    port.write_text(text)
    found = diagnose(str(port), pairs=False).findings
    assert {finding.explanations for finding in found if finding.verdict == "explained"} == {((defect,),)}, [f.text for f in found]


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
    """Another rate where the reference's falls."""
    late = np.asarray(case.inputs["step"]) > case.inputs["warmup"]
    return {"output": np.asarray(np.where(late, 0.9 * right["output"], right["output"]))}


# component, what is wrong, and the sentences that say so
COMMON: dict[str, tuple[str, Callable[[Case, Outputs], Outputs], list[str]]] = {
    "longer steps": ("decode_in_steps", _longer_steps, ["only where a step is longer than one token"]),
    "ids": (
        "greedy_search",
        _same_ids,
        ["of your outputs the ids differ; the log-probabilities are right", "the first token is right, later ones are not"],
    ),
    "scores": (
        "beam_search",
        lambda case, right: right | {"score_bw": 1.1 * right["score_bw"]},
        ["of your outputs the scores differ; the ids are right"],
    ),
    "after the warm-up": ("noam", _later, ["only where step is above warmup", "the first step is right, later ones are not"]),
    "smoothed": (
        "cross_entropy",
        lambda case, right: {"output": np.asarray(right["output"] + case.inputs.get("smoothing", 0.0))},
        ["only where smoothing is given"],
    ),
    "half": (
        "cross_entropy",
        lambda case, right: {"output": np.asarray(right["output"] / 2)},
        ["your output is the reference times 0.5"],
    ),
    "decay": (
        "adam",
        lambda case, right: _plus(right, case.inputs["weight_decay"], "parameters", "kernel"),
        ["only where weight_decay is given", "of your outputs the parameters that end in `kernel` differ; the others are right"],
    ),
    "moments": (
        "adam",
        lambda case, right: _plus(right, 1.0, "first"),
        ["of your outputs the first moments differ; the parameters, second moments are right"],
    ),
}


def _plus(right: Outputs, number: float, start: str, end: str = "") -> Outputs:
    return {name: value + number * (name.startswith(start) and name.endswith(end)) for name, value in right.items()}


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
    assert [sentence for sentence in sentences if sentence not in found] == [], found
