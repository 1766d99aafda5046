"""The search behind diagnosis: from outputs alone it names what was put in, and nothing else."""

import re
from pathlib import Path

import mutation
import pytest
from expectations import all_by_id

from rosettaformer.conformance.case import DTYPES
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.defects import all_defects
from rosettaformer.conformance.defects.settings import all_settings
from rosettaformer.conformance.diagnosis import explanation
from rosettaformer.conformance.diagnosis.altered import separates
from rosettaformer.conformance.diagnosis.hypotheses import Hypotheses
from rosettaformer.conformance.diagnosis.search import Search, ordered_pairs

PAGE = (Path(__file__).parent.parent / "docs" / "mutation.md").read_text()
LINES = {line.split()[1]: line for line in PAGE.splitlines() if re.match(r"\| [A-Z]+\d", line)}
DEFECTS, SETTINGS = all_defects(), all_settings()
one_process = pytest.mark.xdist_group("mutation")  # these share hypotheses that take minutes


@one_process
@pytest.mark.parametrize(
    "ids",
    [pytest.param(["ATT3", "NRM2", "PE2"], marks=pytest.mark.sample), pytest.param(list(LINES)[::6], marks=pytest.mark.exhaustive)],
    ids=["3", "a sixth"],
)
def test_the_page_says_what_the_code_names(ids: list[str]) -> None:
    """`make mutation` takes all."""
    assert mutation.table([mutation.single_row(id_) for id_ in ids]) == [LINES[id_] for id_ in ids]


def test_nearly_all_are_named_and_none_wrongly() -> None:
    """What the page says of all; it is checked against the code above."""
    exact, among = (int(share) for share in re.findall(r" are named .*?\((\d+)%\)", PAGE.replace("\n", " "))[:2])
    assert exact >= 95
    assert among >= 85
    assert "Wrong names for a single defect: 0." in PAGE


@one_process
@pytest.mark.exhaustive
def test_pairs_in_different_components_are_named_from_logits() -> None:
    namings = [mutation.name("transformer", pair, pairs=True) for pair in mutation.random_pairs(8)]
    assert sum(naming.among for naming in namings) >= 0.7 * len(namings)


@pytest.mark.parametrize("count", [pytest.param(4, marks=pytest.mark.sample), pytest.param(10, marks=pytest.mark.exhaustive)])
def test_a_mistake_that_the_catalogue_does_not_have_gets_no_name(count: int) -> None:
    assert mutation.false_names(count) == []


def test_correct_configurations_get_no_name() -> None:
    assert mutation.false_alarms(mutation.CONFIGURATIONS) == []


@pytest.mark.parametrize("id_", SETTINGS)
def test_every_setting_alters_some_case_and_is_found_where_no_defect_is_the_same(id_: str) -> None:
    setting = SETTINGS[id_]
    candidates = mutation.hypotheses("transformer" if setting.component == "transformer" else setting.component, "float64")
    search = Search(candidates, mutation.as_port((setting,), candidates.probes))
    assert search.failing, "the setting alters no case of its component"
    named = {one.id for (one,) in search.explain()}
    assert id_ in named or (named and named <= DEFECTS.keys())


def test_several_that_cannot_be_told_apart_are_all_named_with_what_would_separate_them() -> None:
    candidates = mutation.hypotheses("transformer", "float64")
    search = Search(candidates, mutation.as_port((DEFECTS["ATT13"],), candidates.probes))
    found = search.explain()
    assert {one.id for (one,) in found} >= {"ATT12", "ATT13"}
    softmax = all_by_id()["softmax/large_masked"].at("float64")
    assert separates(softmax, (DEFECTS["ATT12"],), (DEFECTS["ATT13"],))
    assert not separates(softmax, (DEFECTS["ATT13"],), (DEFECTS["ATT13"],))
    text = explanation.explained([(DEFECTS["ATT13"],), (DEFECTS["ATT12"],)], "all 17 cases", [case.at("float64") for case in all_cases()])
    assert (
        "So does the reference with\n  ATT12 (the finite fill is not below every logit); softmax/large_masked would tell them apart" in text
    )
    text = explanation.explained([(DEFECTS["ATT13"],), (DEFECTS["ATT13"],)], "all 17 cases", [softmax])
    assert "no case of the suite tells them apart" in text


def test_pairs_at_one_place_are_tried_in_both_orders() -> None:
    pairs = {(first.id, second.id) for first, second in ordered_pairs([DEFECTS["NRM1"], DEFECTS["NRM2"], DEFECTS["EMB1"]])}
    assert pairs == {("NRM1", "NRM2"), ("NRM2", "NRM1"), ("NRM1", "EMB1"), ("NRM2", "EMB1")}


def _one_case(id_: str) -> Hypotheses:
    case = all_by_id()[id_].at("float64")
    return Hypotheses([case], DEFECTS.values(), SETTINGS.values())


def test_a_defect_is_preferred_to_a_setting_that_is_the_same() -> None:
    candidates = _one_case("activation/gelu_erf")
    search = Search(candidates, mutation.as_port((SETTINGS["activation=gelu_tanh"],), candidates.probes))
    assert search.explain() == [(DEFECTS["FFN1"],)]
    candidates = _one_case("encoder_layer/gelu")
    search = Search(candidates, mutation.as_port((DEFECTS["NRM2"], DEFECTS["FFN1"]), candidates.probes))
    found = [{one.id for one in pair} for pair in search.pairs()]
    assert {"NRM2", "FFN1"} in found
    assert not {one for pair in found for one in pair} & SETTINGS.keys()


def test_hypotheses_that_alter_nothing_are_left_out() -> None:
    case = all_by_id()["layer_norm/plain"].at(DTYPES[0])
    kept = Hypotheses([case], DEFECTS.values(), SETTINGS.values())
    assert {one.id for one in kept.defects} >= {"NRM1", "NRM3", "NRM5"}
    assert not {"PE1", "ATT1", "EMB1"} & {one.id for one in kept.defects}
