"""The search behind diagnosis: from outputs only, it names the planted bug and nothing else."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import mutation
import numpy as np
import pytest
from expectations import all_by_id, expect, suite
from kinds import every
from messages import mentions

from reference_numpy import normalization
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.catalogue import Alteration, all_defects
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis import altered
from rosettaformer.judge.diagnosis import words as written
from rosettaformer.judge.diagnosis.altered import separates
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.search import ordered_pairs
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.expectation import components

DEFECTS = all_defects()
# bugs of searches, whose cases are in float32, are planted in test_alterations
SETTINGS = {id_: one for id_, one in all_settings().items() if one.component not in components.SEARCHES}
one_process = pytest.mark.xdist_group("mutation")  # these share hypotheses that take minutes to compute


@pytest.mark.conformance
@one_process
def test_a_defect_is_named_from_the_outputs_of_its_component_and_never_wrongly_from_logits() -> None:
    """Tests every twelfth bug; `make evidence STEP=mutation` tests all."""
    for id_ in ("ATT3", "NRM2", "PE2", *(one.id for one in mutation.observable()[::12])):
        *_, own, whole = mutation.single_row(id_)
        assert own.alone, id_
        assert whole.among or not whole.named, id_


@one_process
@pytest.mark.conformance
def test_pairs_in_different_components_are_named_from_logits() -> None:
    namings = [mutation.name("transformer", pair, pairs=True) for pair in mutation.random_pairs(3)]
    assert sum(naming.among for naming in namings) >= 2


def _under_a_condition(mistake: Any) -> Evidence:
    """Returns a decoder layer that has a bug if it is post-norm and is correct if it is pre-norm."""
    cases = [case for case in mutation.nothing_wrong("decoder_layer", "float64").probes if "keep" not in case.name][:8]
    with mutation.injected(mistake):
        wrong = mutation.as_port((), cases)
    right = mutation.as_port((), cases)
    post = [case.config.norm_placement == "post" for case in cases]
    assert any(post) and not all(post)
    answers: list[Any] = [one if meant else other for meant, one, other in zip(post, wrong, right, strict=True)]
    return Evidence(Hypotheses(cases, DEFECTS.values(), SETTINGS.values()), answers)


@pytest.mark.conformance
def test_what_goes_wrong_under_a_condition_is_named_and_what_no_alteration_does_is_not() -> None:
    named = _under_a_condition(DEFECTS["FFN5"])
    assert Search(named).explain() == []
    assert "norm_placement is post" in named.condition
    assert [[one.id for one in found] for found in Search(named).where_failing()] == [["FFN5"]]
    places = ("feed_forward.feed_forward", "normalization.layer_norm", "attention.multi_head_attention")
    for place, factor in zip(places, (1.013, 0.97, 1.021), strict=True):
        assert Search(_under_a_condition(mutation.larger(place, factor))).where_failing() == []


@pytest.mark.conformance
@pytest.mark.parametrize("count", [1, 2])
def test_a_mistake_that_the_catalogue_does_not_have_gets_no_name(count: int) -> None:
    assert mutation.false_names(count) == []


@pytest.mark.conformance
def test_correct_configurations_get_no_name() -> None:
    assert mutation.false_alarms(mutation.CONFIGURATIONS) == []


def searched(setting: Alteration, component: str) -> Evidence:
    candidates = mutation.hypotheses(component, "float64")
    answers = mutation.as_port((setting,), candidates.probes)
    if None in answers:  # a case that the setting makes fail, such as one whose keep masks have another length
        candidates = Hypotheses([case for case, answer in zip(candidates.probes, answers, strict=True) if answer], [], [setting])
    return Evidence(candidates, [answer for answer in answers if answer])


@pytest.mark.parametrize("id_", every(48, SETTINGS))
def test_every_setting_alters_some_case_and_is_found_where_no_defect_is_the_same(
    id_: str, record_property: Callable[[str, object], None]
) -> None:
    setting = SETTINGS[id_]
    searches = (searched(setting, component) for component in (setting.component, *mutation.MODELS))  # some show only in whole models
    evidence = next((evidence for evidence in searches if evidence.failing), None)
    assert evidence, "the setting alters no case"
    named = {one.id for (one,) in Search(evidence).explain()}
    assert id_ in named or (named and named <= DEFECTS.keys())
    record_property("mutants named", 1)


@pytest.mark.conformance
def test_several_that_cannot_be_told_apart_are_all_named_with_what_would_separate_them() -> None:
    candidates = mutation.hypotheses("transformer", "float64")
    evidence = Evidence(candidates, mutation.as_port((DEFECTS["ATT13"],), candidates.probes))
    found = Search(evidence).explain()
    assert {one.id for (one,) in found} >= {"ATT12", "ATT13"}
    softmax = all_by_id()["softmax/large_masked"].at("float64")
    assert separates(softmax, (DEFECTS["ATT12"],), (DEFECTS["ATT13"],))
    assert not separates(softmax, (DEFECTS["ATT13"],), (DEFECTS["ATT13"],))
    text = written.explained([(DEFECTS["ATT13"],), (DEFECTS["ATT12"],)], "all 17 cases", [case.at("float64") for case in suite()])
    names = [DEFECTS[id_].name for id_ in ("ATT13", "ATT12")]
    assert mentions(text, " … ".join(["all 17 cases", *names, "softmax/large_masked … ATT13 … ATT12"]))


def test_what_two_alterations_answer_alike_is_seen_without_an_expectation() -> None:
    """A case that tells two alterations apart is sought in the whole suite; most cases do not."""
    case = all_by_id()["softmax/large_masked"].at("float32")
    alike, other = (DEFECTS["ATT13"],), (mutation.larger("softmax.softmax", 1 + 2.0**-23),)
    with mock.patch.object(altered, "expected", side_effect=altered.expected) as expected:
        assert not separates(case, alike, alike)
        assert not separates(case, (), other)
        assert expected.mock_calls == []
        assert separates(case, alike, (DEFECTS["ATT12"],))
        assert len(expected.mock_calls) == 1


def test_pairs_are_tried_and_named_in_one_order_and_never_of_one_number() -> None:
    cases = [case.at("float64") for case in suite() if case.id.startswith("layer_norm/") and case.config.norm_offset]
    pair = mutation.larger("normalization.layer_norm", 1.5), mutation.larger("normalization.layer_norm", 1.25)
    evidence = Evidence(Hypotheses(cases, pair), mutation.as_port(pair, cases))
    assert all(evidence.explains(each) for each in (pair, pair[::-1]))
    assert Search(evidence).pairs() == [pair]
    pair = DEFECTS["LOS1"], mutation.larger("embedding.logits", 1.25)
    losses = [case.at("float64") for case in suite() if case.id in ("training_loss/separate_tables", "training_loss/feed_forward_dropout")]
    for cases, named in ((losses, [pair]), (losses[:1], [])):
        evidence = Evidence(Hypotheses(cases, pair), mutation.as_port(pair, cases))
        assert evidence.explains(pair)
        assert Search(evidence).pairs() == named
        assert bool(evidence.nearest()) == bool(named)
    pairs = {(first.id, second.id) for first, second in ordered_pairs([DEFECTS["NRM1"], DEFECTS["NRM2"], DEFECTS["EMB1"]])}
    assert pairs == {("NRM1", "NRM2"), ("NRM2", "NRM1"), ("NRM1", "EMB1"), ("NRM2", "EMB1")}


@pytest.mark.parametrize(
    ("ids", "case"),
    [
        ({"MOE2", "MOE16"}, "transformer/gpt_oss"),
        ({"MOE6", "MOE10", "MOE15"}, "transformer/deepseek"),
        ({"MOE7", "MOE9", "MOE10"}, "transformer/deepseek"),
    ],
)
def test_a_router_by_another_rule_is_named_by_what_differs(ids: set[str], case: str) -> None:
    candidates = Hypotheses([all_by_id()[case].at("float64")], [one for one in DEFECTS.values() if one.component == "router"])
    planted = [DEFECTS[id_].hypotheses[id_ in ("MOE9", "MOE15")] for id_ in sorted(ids)]  # no groups, no scale
    evidence = Evidence(candidates, mutation.as_port(tuple(planted), candidates.probes))
    assert ids in [{one.id for one in found} for found in Search(evidence).together()]


def _one_case(id_: str) -> Hypotheses:
    case = all_by_id()[id_].at("float64")
    return Hypotheses([case], DEFECTS.values(), SETTINGS.values())


def test_a_defect_is_preferred_to_an_equal_setting_and_what_alters_nothing_left_out() -> None:
    candidates = _one_case("activation/gelu_erf")
    evidence = Evidence(candidates, mutation.as_port((SETTINGS["activation=gelu_tanh"],), candidates.probes))
    assert Search(evidence).explain() == [(DEFECTS["FFN1"],)]
    candidates = _one_case("encoder_layer/gelu")
    evidence = Evidence(candidates, mutation.as_port((DEFECTS["NRM2"], DEFECTS["FFN1"]), candidates.probes))
    found = [{one.id for one in pair} for pair in Search(evidence).pairs()]
    assert {"NRM2", "FFN1"} in found
    assert not {one for pair in found for one in pair} & SETTINGS.keys()
    case = all_by_id()["layer_norm/plain"].at(DTYPES[0])
    kept = Hypotheses([case], DEFECTS.values(), SETTINGS.values())
    altering = {one.id for one in kept.altering([0])}
    assert altering >= {"NRM1", "NRM3", "NRM5"}
    assert not {"PE1", "ATT1", "EMB1"} & altering


LAYER_NORM = [
    case
    for case in all_by_id().values()
    if case.component == "layer_norm" and (case.config.norm_offset, case.config.norm_one_plus_scale) == (True, False)
]


def _without_epsilon(case: Case, constant: float, error: float = 0.0) -> np.ndarray:
    """Returns a case's norm without epsilon: constant rows become this number, and long rows have an error."""
    x, deviation = case.inputs["x_btd"], case.inputs["x_btd"].std(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        normalised = (x - x.mean(axis=-1, keepdims=True)) / deviation
    y = normalised * case.parameters["scale"] + case.parameters["offset"]
    return np.where(deviation < 1e-6 * np.abs(x), constant, y + error * (x.shape[1] == 5)).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("constant", [np.nan, np.inf, 0.7])
def test_a_norm_without_epsilon_is_named_whatever_it_makes_of_a_constant_row(constant: float, dtype: str) -> None:
    cases = [case.at(dtype) for case in LAYER_NORM]
    evidence = Evidence(Hypotheses(cases, DEFECTS.values()), [{"output": _without_epsilon(case, constant)} for case in cases])
    (found,) = Search(evidence).explain()
    assert ["no epsilon" in one.title for one in found] == [True]
    assert "layer_norm/constant_rows" in [cases[index].id for index in evidence.silent(found)]


def test_rows_left_to_rounding_say_nothing_and_wrong_ones_do() -> None:
    cases = [case.at("float64") for case in LAYER_NORM]
    evidence = Evidence(Hypotheses(cases, DEFECTS.values()), [{"output": _without_epsilon(case, np.nan, 1e-9)} for case in cases])
    assert Search(evidence).explain() == []
    case = all_by_id()["layer_norm/constant_rows"].at("float64")
    clean = expect(case)
    for one in (each for defect in DEFECTS.values() for each in defect.hypotheses if each.component == "layer_norm"):
        settled = altered.settled((one,), case, clean)({"output": np.ones(clean["output"].reference.shape)})["output"]
        assert (settled == 1).all() == ("no epsilon" not in one.title), one.title


@pytest.mark.parametrize("change", ["centred", "standardised"])
def test_a_norm_that_changes_its_input_in_place_is_named(change: str) -> None:
    """A pre-norm layer in plain NumPy whose norm overwrites x."""
    true = normalization.layer_norm

    def in_place(p: Any, x: np.ndarray, epsilon: float, *flags: bool) -> np.ndarray:
        y = true(p, x, epsilon, *flags)
        x -= x.mean(axis=-1, keepdims=True)
        if change == "standardised":
            x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
        return y

    cases = [all_by_id()[f"encoder_layer/{name}"].at("float64") for name in ("pre", "pre_ragged")]
    answers = []
    for case in cases:
        own = dataclasses.replace(case, inputs=dict(case.inputs) | {"x_btd": case.inputs["x_btd"].copy()})
        with mock.patch.object(normalization, "layer_norm", in_place):
            answers.append(components.answer(own))
    found = Search(Evidence(Hypotheses(cases, DEFECTS.values(), SETTINGS.values()), answers)).explain()
    wanted = list(DEFECTS["RES3"].variants)[-2 if change == "centred" else -1]
    assert [one.title for (one,) in found][:1] == [wanted]


def test_two_bugs_of_one_update_are_named_together() -> None:
    """The second one replaces the update that the first one calls with another epsilon."""
    later = next(one for one in DEFECTS["OPT6"].hypotheses if "updated parameters" in one.variant)
    hypotheses = mutation.hypotheses("adam", "float64")
    evidence = Evidence(hypotheses, mutation.as_port((later, DEFECTS["OPT1"]), hypotheses.probes))
    found = Search(evidence).cover()
    assert {one.id for one in found} == {"OPT1", "OPT6"} and evidence.explains(found)


def test_a_much_smaller_case_rules_out_an_alteration() -> None:
    """All cases but one are wrong as NRM2 makes them; the screen is right."""
    cases = [case.at("float64") for case in LAYER_NORM]
    evidence = Evidence(Hypotheses(cases, DEFECTS.values()), [altered.answer((DEFECTS["NRM2"],), case) or {} for case in cases])
    assert [[one.id for one in found] for found in Search(evidence).explain()] == [["NRM2"]]
    small = cases[:1]
    evidence.screen = Evidence(Hypotheses(small, DEFECTS.values()), [altered.answer((), case) or {} for case in small])
    assert Search(evidence).explain() == []
