"""An alteration at one place changes only that place, and every distinguishable place is found."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from expectations import all_by_id

from reference_numpy import layers, parameters
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Alteration, all_defects
from rosettaformer.judge.catalogue.alteration import Place, Site, places, sites
from rosettaformer.judge.diagnosis import altered
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.expectation import trace

DEFECTS = all_defects()
MODEL = all_by_id()["transformer/nn_transformer"].at("float64")
ATTENTION = "attention.scaled_dot_product_attention"
TWO = ((), ("last",))  # names of two layers


@pytest.mark.parametrize(
    ("pattern", "path", "holds"),
    [
        ("encoder", "encoder.layers.0.self_attention", True),
        ("encoder", "decoder.layers.0.self_attention", False),
        ("decoder.layers.*.cross_attention", "decoder.layers.1.cross_attention.scaled_dot_product_attention", True),
        ("decoder.layers.*.cross_attention", "decoder.layers.1.self_attention", False),
        ("decoder.layers.last", "decoder.layers.1.self_attention", True),
        ("decoder.layers.last", "decoder.layers.0.self_attention", False),
        ("encoder.layers.local", "encoder.layers.1.self_attention", True),
        ("encoder.layers.local", "encoder.layers.0.self_attention", False),
        ("encoder.layers.local.feed_forward", "encoder.layers.1.self_attention", False),
        ("**.self_attention", "decoder.layers.0.self_attention", True),
        ("**.self_attention", "self_attention.scaled_dot_product_attention", True),
        ("**.attention", "decoder.layers.0.self_attention", False),
        ("encoder.layers.0", "encoder.layers", False),
    ],
)
def test_what_is_within_a_place(pattern: str, path: str, holds: bool) -> None:
    assert Place(pattern).holds(Site(path, (("encoder", (("global",), ("local", "last"))), ("decoder", TWO)))) == holds


@pytest.mark.parametrize("pattern", ["encoder", "decoder.layers.*.cross_attention", "decoder.layers.last", "encoder.layers.0"])
def test_an_alteration_at_a_place_alters_what_is_there_and_leaves_what_is_before_and_beside(pattern: str) -> None:
    place = Place(pattern)
    clean = trace.record(MODEL)
    with altered.injected(replace(DEFECTS["ATT3"], place=place)):
        other = trace.record(MODEL)
    for path, call in clean.items():
        if call.component == "scaled_dot_product_attention":
            same_inputs = all(np.array_equal(call.inputs[name], other[path].inputs[name]) for name in ("query_bthk", "key_bsgk"))
            within = place.holds(Site(path, (("encoder", TWO), ("decoder", TWO))))
            assert not same_inputs or np.array_equal(call.output, other[path].output) != within, path
    assert altered.differ({"output": clean[""].output}, {"output": other[""].output})


def test_places_tell_calls_of_functions_and_sublayers_apart_and_leave_the_reference_itself() -> None:
    found = [str(place) for place in places([sites(MODEL, [ATTENTION])[ATTENTION]])]
    assert {"encoder", "decoder", "every self_attention", "every cross_attention", "encoder.layers.0", "encoder.layers.1"} <= set(found)
    assert "decoder.layers.0.cross_attention" in found
    assert "decoder.layers.*.cross_attention" not in found  # the same calls as every cross_attention
    found = {site.path for site in sites(MODEL, ["layers.residual_out"])["layers.residual_out"]}
    assert {"encoder.layers.0.self_attention", "decoder.layers.1.cross_attention", "decoder.layers.1.feed_forward"} <= found
    before = layers.residual_out
    with altered.injected(replace(DEFECTS["NRM9"], place=Place("encoder"))):
        assert layers.residual_out is not before
    assert layers.residual_out is before


def _evidence(cases: list[Case], alterations: list[Alteration], *planted: Alteration) -> Evidence:
    return Evidence(Hypotheses(cases, alterations), [altered.answer(planted, case) or {} for case in cases])


def test_a_place_is_no_narrower_than_the_answers_that_fail_show() -> None:
    """Only models of one decoder layer have target padding, so nothing shows that the mask is the last layer's."""
    names = ("ragged", "left_padding", "nn_transformer")
    cases = [all_by_id()[f"transformer/{name}"].at("float64") for name in names]
    assert {case.config.decoder_layers for case in cases} == {1, 2}
    one = replace(DEFECTS["ATT27"], variants={})
    evidence = _evidence(cases, [one], replace(one, place=Place("decoder.layers.*.self_attention")))
    ((found,),) = Search(evidence).explain((one,))
    assert "last" not in str(found.place)
    assert found.place is not None
    assert found.place.holds(Site("decoder.layers.0.self_attention", (("decoder", TWO),)))


@pytest.mark.conformance
def test_a_mistake_everywhere_is_named_with_one_that_is_at_one_place() -> None:
    cases = [all_by_id()["encoder/grouped_heads_gelu_no_bias"].at("float64")]
    planted = DEFECTS["NRM1"], replace(DEFECTS["FFN1"], place=Place("layers.0"))
    evidence = _evidence(cases, list(DEFECTS.values()), *planted)
    assert Search(evidence).explain() == []
    assert [[one.name for one in pair] for pair in Search(evidence).with_nearest()] == [[one.name for one in planted]]


@pytest.mark.parametrize(("kind", "id_"), [("local", "SNK1"), ("global", "ATT2"), ("experts", "ATT3"), ("dense", "FFN1")])
def test_a_mistake_in_the_layers_of_one_kind_is_found_before_changes_of_the_dataflow(kind: str, id_: str) -> None:
    """Every other layer has a window; the two in the middle have experts."""
    case = all_by_id()["transformer/gpt_oss"].at("float64")
    config = case.config.replace(decoder_layers=4, expert_pattern=(False, True, True, False))
    generator = np.random.default_rng(0)
    drawn = {name: generator.standard_normal(shape) / np.sqrt(max(shape[-2:])) for name, shape in parameters.shapes(config).items()}
    case = replace(case, config=config, parameters=drawn)
    planted = replace(DEFECTS[id_], place=Place(f"decoder.layers.{kind}"), variants={})
    evidence = _evidence([case], [DEFECTS[name] for name in ("SNK1", "QKN1", "ATT2", "ATT3", "FFN1")], planted)
    with mock.patch.object(evidence.hypotheses, "dataflow", side_effect=AssertionError):
        found = {(one.id, str(one.place)) for (one,) in Search(evidence).explain(located=False)}
    assert found == {(id_, f"decoder.layers.{kind}")}
