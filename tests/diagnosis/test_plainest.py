"""The plainer of two equivalent explanations is reported, and every fix fits the places of its bug."""

import re

import numpy as np
import pytest
from expectations import all_by_id, store

from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.diagnosis.altered import answer
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.distinguishing import plainest
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.diagnosis.hypotheses.inputs import ignored, reversed_rows

DEFECTS = all_defects()


def _first_row_is_full(case):
    mask = case.inputs.get("mask_bhts")
    return mask is not None and len(mask) > 1 and mask[0].all() and not mask.all() and mask.shape[1:3] == (1, 1)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """Returns evidence of an attention that ignores its mask, on cases whose first row has no padding."""
    cases = [case for case in all_by_id().values() if case.component == "multi_head_attention"]
    probes = [case.at("float64") for case in cases if _first_row_is_full(case)][:2]
    one = ignored(probes)["mask_bhts"]
    answers = [answer((one,), probe) for probe in probes]
    return Evidence(Hypotheses(probes, [DEFECTS["ATT36"], DEFECTS["ATT7"]], store=store()), answers)


def test_an_ignored_mask_is_called_ignored_before_what_gives_the_same(evidence: Evidence) -> None:
    found = Search(evidence).explain()
    assert [[one.id for one in combination] for combination in found] == [["ATT36"]]
    said = plainest(found, evidence, lambda one: evidence.explains(one, one))
    assert [combination[0].id for combination in said] == ["multi_head_attention.mask_bhts=ignored", "ATT36"]


def test_rows_in_reverse_order_tell_the_first_rows_mask_from_none(evidence: Evidence) -> None:
    case = evidence.probes[0]
    other = reversed_rows(case)
    assert np.array_equal(other.inputs["mask_bhts"][::-1], case.inputs["mask_bhts"])
    one = ignored([case])["mask_bhts"]
    first, second = (answer((each,), other)["output"] for each in (one, DEFECTS["ATT36"]))
    assert not np.allclose(first, second)


SUBLAYERS = re.compile(r"\b(?:self\.)?(attention|self_attention|cross_attention|feed_forward)\(")
PLACED = ("RES1", "RES2", "RES3", "RES5")  # around every sub-layer, or around one


@pytest.mark.parametrize("id_", PLACED)
def test_the_fix_of_what_may_be_around_any_sublayer_shows_no_other_one(id_: str) -> None:
    for text in DEFECTS[id_].fix.values():
        assert not SUBLAYERS.findall(text)


@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_a_fix_shows_everything_that_a_variant_may_have_wrong(framework: str) -> None:
    assert "10000" in DEFECTS["PE4"].fix[framework]  # the timescales, not only the layout
    assert "left" in DEFECTS["PE13"].fix[framework]  # the padding, not only the cache
