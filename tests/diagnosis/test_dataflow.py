"""Dataflow changes: a planted change is found and described, and none is found in noise."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import flat
import numpy as np
import pytest
from expectations import all_by_id
from kinds import every

from reference_numpy import feed_forward, normalization
from reference_numpy.parameters import nest
from rosettaformer.judge.case import Case
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.expectation import components

CASES = [case.at("float64") for case in all_by_id().values() if case.component == "decoder_layer" and not case.excluded]
PLAIN = [case for case in CASES if case.config.norm_placement == "post" and not any(name.startswith("keep") for name in case.inputs)][:4]


def _layer(case: Case, wrong: str) -> np.ndarray:
    """Returns a decoder layer as in the paper's figure, with one bug."""
    p: Any = nest(case.parameters)
    x, memory, c = case.inputs["x_btd"], case.inputs["memory_bsd"], case.config
    masks = case.inputs.get("self_mask_bhts"), case.inputs.get("cross_mask_bhts")

    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return normalization.layer_norm(p[name], y, c.epsilon)

    def ffn(y: np.ndarray) -> np.ndarray:
        return feed_forward.feed_forward(p["feed_forward"], y, c.activation)

    y = flat.multi_head_attention(p["self_attention"], x, x, masks[0], causal=True)
    h = norm("self_attention_norm", y if wrong == "residual" else x + y)
    query = x if wrong == "query" else h
    memory = norm("cross_attention_norm", memory) if wrong == "memory" else memory
    y = flat.multi_head_attention(p["cross_attention"], query, memory, None if wrong == "mask" else masks[1])
    added = h + y
    h = norm("self_attention_norm" if wrong == "norm" else "cross_attention_norm", added)
    y = ffn(ffn(h)) if wrong == "twice" else ffn(h)
    return norm("feed_forward_norm", (added if wrong == "sum" else h) + (0 * y if wrong == "nothing" else y))


PLANTED = {
    "residual": "self_attention_norm.x_btd=the output of self_attention",
    "query": "cross_attention.query_btd=the decoder_layer's x_btd",
    "norm": "cross_attention_norm.parameters=self_attention_norm",
    "memory": "cross_attention.memory_bsd=normed by cross_attention_norm",
    "twice": "feed_forward.output=applied twice",
    "nothing": "feed_forward.output=zero",
    "sum": "feed_forward.residual=what cross_attention_norm is given",
}


def _evidence(answer: Callable[[Case], np.ndarray]) -> Evidence:
    return Evidence(Hypotheses(PLAIN, []), [{"output": answer(case)} for case in PLAIN])


@pytest.mark.parametrize("wrong", every(2, PLANTED))
def test_a_planted_change_is_found(wrong: str) -> None:
    found = Search(_evidence(lambda case: _layer(case, wrong))).explain(located=False)
    assert f"decoder_layer.{PLANTED[wrong]}" in [one.id for (one,) in found]


def test_a_correct_layer_fails_nowhere_and_noise_is_no_change() -> None:
    assert _evidence(lambda case: _layer(case, "")).failing == []
    noise = np.random.default_rng(0)
    evidence = _evidence(lambda case: _layer(case, "") + 1e-6 * noise.standard_normal(case.inputs["x_btd"].shape))
    assert Search(evidence).explain() == []


@pytest.mark.conformance
def test_a_change_of_one_layer_is_found_at_its_place() -> None:
    case = all_by_id()["transformer/nn_transformer"].at("float64")
    true, calls = normalization.layer_norm, []

    def last_but_one(p: Any, x: np.ndarray, *options: Any) -> np.ndarray:
        calls.append(x)
        return x if len(calls) == 2 else true(p, x, *options)  # the feed-forward norm of the first encoder layer

    with mock.patch.object(normalization, "layer_norm", last_but_one):
        output = components.answer(case)["output"]
    found = Search(Evidence(Hypotheses([case], []), [{"output": output}])).explain()
    assert "encoder.layers.0" in " ".join(one.name for (one,) in found)
    assert any("feed_forward_norm is left out" in one.name for (one,) in found)
