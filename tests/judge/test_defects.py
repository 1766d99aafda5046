"""The judge tests itself: every known bug, injected into the reference, fails the cases that claim to catch it."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id, expect
from kinds import conformance, every
from messages import naming

from rosettaformer.judge import catalogue
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import Defect, all_defects, injected, records
from rosettaformer.judge.catalogue.effect import effect
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.suite import all_cases

# the letters of the ids -> the highest number; all numbers up to it are used except these
HIGHEST = {
    "ATT": 37, "CAP": 6, "CAU": 10, "DRP": 7, "EMB": 16, "FFN": 10, "GEN": 10, "HED": 6, "INI": 2,
    "LOS": 10, "MHA": 23, "NRM": 32, "OPT": 8, "OUT": 1, "PAD": 9, "MOE": 21, "PE": 28, "PRC": 7, "QKN": 7, "RES": 5,
    "ROT": 10, "RSC": 9, "RTL": 2, "SEG": 2, "SEQ": 3, "SNK": 2, "STR": 14, "WIN": 5,
}  # fmt: skip
NONE = {"CAU5", "NRM6", "STR2"}
RAISING = ("PE8", "PE10", "MHA9")  # known bugs that raise an error: an odd width, a table of another length, a reshape
# bugs that no run of a whole model can show: a bias of the logits, attention without a mask, far positions, a mean far from 0, roundings
# common in half precision, a constant row there, the update of the parameters, and random draws; and choices of no model of the suite
NOT_IN_A_MODEL = (
    "ATT28", "CAU9", "PE21", "NRM4", "NRM7", "NRM11", "ATT19", "OPT1", "OPT2", "OPT3", "OPT4", "OPT5", "OPT6", "OPT7", "OPT8", "DRP5",
    "INI1", "INI2", "ROT8", "ROT9", "NRM27", "MOE5", "MOE11", "MOE18", "MOE19",
)  # fmt: skip
MODELS = ("transformer", *components.WHOLE, "transformer_vjp", *(f"{name}_vjp" for name in components.WHOLE))
DEFECTS, CASES = all_defects(), all_by_id()
OBSERVABLE = [id_ for id_, defect in DEFECTS.items() if not defect.unobservable]
CLAIMS = [(case.id, id_) for case in CASES.values() for id_ in case.catches]
VARIANTS = [(id_, one.variant) for id_ in OBSERVABLE for one in DEFECTS[id_].hypotheses[1:]]
FIRST = {(next(case_id for case_id, claimed in CLAIMS if claimed == id_), id_) for id_ in OBSERVABLE}
COMPONENTS = sorted({case.component for case in CASES.values()})


def _dear(case: Case) -> bool:
    """Whether a case is slow: a gradient outside the core."""
    return not case.core and bool(components.forward_of(case.component))


@cache
def _expected(case_id: str, dtype: str) -> tuple[Case, dict[str, tolerance.Expectation]]:
    case = CASES[case_id].at(dtype)
    return case, expect(case)


def _excess(case_id: str, defect: Defect, dtype: str) -> float:
    """Returns the altered reference's error in a case, divided by the tolerance; a failure is infinite."""
    one = effect(defect, *_expected(case_id, dtype))
    assert defect.id in RAISING or not one.message.startswith("an error"), one.message
    return one.times


def _catches(case_id: str, defect: Defect) -> bool:
    """Whether the altered reference misses the tolerance of a case tenfold in a dtype."""
    return any(_excess(case_id, defect, dtype) >= 10 for dtype in defect.dtypes)


def test_the_catalogue_holds_what_it_must_and_cases_claim_observable_defects_of_it() -> None:
    required = {f"{name}{number}" for name, most in HIGHEST.items() for number in range(1, most + 1)}
    assert {*DEFECTS} == required - NONE
    assert {id_ for _, id_ in CLAIMS} <= set(OBSERVABLE)


@pytest.mark.parametrize("id_", OBSERVABLE)
def test_a_case_claims_the_defect_and_one_of_them_is_a_whole_model(id_: str) -> None:
    claiming = [case_id for case_id, claimed in CLAIMS if claimed == id_]
    assert claiming
    assert id_ in NOT_IN_A_MODEL or any(case_id.partition("/")[0] in MODELS for case_id in claiming)


@pytest.mark.parametrize(("case_id", "id_"), [claim if claim in FIRST else conformance(claim) for claim in CLAIMS])
def test_a_case_catches_the_defects_that_it_claims(case_id: str, id_: str, record_property: Callable[[str, object], None]) -> None:
    assert _catches(case_id, DEFECTS[id_])
    record_property("mutants caught", int((case_id, id_) in FIRST))


@pytest.mark.conformance
@pytest.mark.parametrize(("id_", "variant"), VARIANTS)
def test_a_case_that_claims_a_defect_catches_each_of_its_variants(
    id_: str, variant: str, record_property: Callable[[str, object], None]
) -> None:
    defect = next(one for one in DEFECTS[id_].hypotheses if one.variant == variant)
    claiming = sorted((case_id for case_id, claimed in CLAIMS if claimed == id_), key=lambda case_id: _dear(CASES[case_id]))
    resized = (case for case_id, case in _of_port().items() if case_id in claiming)
    assert any(_catches(case_id, defect) for case_id in claiming) or any(effect(defect, case, expect(case)).times >= 10 for case in resized)
    record_property("mutants caught", 1)


@cache
def _of_port() -> dict[str, Case]:
    """Returns the cases of a port of other sizes, whose key kernel can be divided into as many heads as the query has."""
    return {case.id: case.at("float64") for case in all_cases({"heads": 8, "key_value_heads": 2, "key_size": 16, "value_size": 16})}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=lambda defect: defect.id)
def test_every_defect_has_a_whole_page_and_a_variant_is_the_defect_under_another_title(defect: Defect) -> None:
    assert list(defect.fix) == ["torch", "tf", "jax"]
    for text in (defect.title, defect.what, defect.shows, defect.evidence, *defect.fix.values()):
        assert text.strip() == text != ""
    assert defect.component in components.COMPONENTS
    assert defect.replaces or defect.unobservable
    first, *others = defect.hypotheses
    assert first is defect is DEFECTS[defect.id]
    assert [one.title for one in others] == list(defect.variants)
    assert len({one.title for one in defect.hypotheses}) == len(defect.hypotheses)
    for one in others:
        assert (one.id, one.component, one.fix, one.hypotheses) == (defect.id, defect.component, defect.fix, (one,))
        assert one.title.strip() == one.title != ""
        assert one.replaces == defect.variants[one.variant]


@pytest.mark.conformance
@pytest.mark.parametrize("case_id", CASES)
def test_an_unobservable_defect_passes_every_case(case_id: str) -> None:
    for id_, defect in DEFECTS.items():
        assert id_ in OBSERVABLE or not defect.replaces or _excess(case_id, defect, "float32") <= 1, id_


@pytest.mark.parametrize(
    ("id_", "changes", "message"),
    [
        ("ATT1", {"sows": "x"}, "scale.toml: ATT1 has unknown keys: sows"),
        ("ATT1", {"title": None, "what": None}, "scale.toml: ATT1 lacks title, what"),
        ("ATT2", {"fix_of": "ATT10"}, "scale.toml: ATT2"),
        ("ATT1", {"fix": {"torch": "x"}}, "scale.toml: ATT1"),
        ("ATT1", None, "scale.py.*scale.toml.*ATT1"),
        ("ATT99", {}, "scale.py.*scale.toml.*ATT99"),
    ],
)
def test_a_family_whose_files_do_not_fit_is_refused(
    id_: str, changes: dict[str, Any] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = dict(records.families()["scale"])
    table = {name: value for name, value in ({**tables.pop(id_, {}), **(changes or {})}).items() if value is not None}
    monkeypatch.setattr(catalogue, "families", lambda: {"scale": tables | ({id_: table} if changes is not None else {})})
    with pytest.raises(ValueError, match=message):
        catalogue.defects_of.__wrapped__("scale")


def test_an_id_in_two_families_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text("[mask.NEW1]\n")
    monkeypatch.setattr(records.resources, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=naming("two.toml … NEW1 … one.toml")):
        records.families.__wrapped__()


@pytest.mark.parametrize("component", every(4, COMPONENTS))
def test_the_reference_is_finite_in_every_dtype_wherever_it_is_in_float64(component: str) -> None:
    for case in (case for case in CASES.values() if case.component == component and not _dear(case)):
        exact = components.answer(case)
        for dtype in case.dtypes:
            for name, value in components.answer(case.at(dtype)).items():
                np.testing.assert_array_equal(np.isfinite(value.astype(float)), np.isfinite(exact[name]), err_msg=f"{case.id} {dtype}")


def test_an_injected_defect_leaves_the_reference_as_it_was() -> None:
    case = CASES["layer_norm/plain"]
    before = components.answer(case)["output"]
    with injected(DEFECTS["NRM3"]):
        assert not np.array_equal(components.answer(case)["output"], before)
    np.testing.assert_array_equal(components.answer(case)["output"], before)


def test_two_defects_compose_at_one_place_and_within_each_other() -> None:
    case = CASES["scaled_dot_product_attention/plain"]
    heads, key_size = case.config.heads, case.config.key_size
    inputs = dict(case.inputs)
    inputs["query_bthk"] = inputs["query_bthk"] * heads**-0.5 * key_size**0.5
    for pair in (("ATT1", "ATT3"), ("ATT3", "ATT1")):
        with injected(*(DEFECTS[id_] for id_ in pair)):
            got = components.answer(case)["output"]
        assert compare(tolerance.expect(dataclasses.replace(case, inputs=inputs))["output"], got).excess <= 1
    case = CASES["decoder_layer/post_ragged"]
    outputs = []
    for pair in ((), ("ATT16",), ("MHA11",), ("ATT16", "MHA11"), ("MHA11", "ATT16")):
        with injected(*(DEFECTS[id_] for id_ in pair)):
            outputs.append(components.answer(case)["output"])
    *different, reversed_ = outputs
    np.testing.assert_array_equal(different[-1], reversed_)
    for one, other in itertools.combinations(different, 2):
        assert np.abs(one - other).max() > 1e-3


@cache
def _answer(case_id: str, id_: str, dtype: str) -> dict[str, np.ndarray] | None:
    try:
        with injected(DEFECTS[id_]), np.errstate(all="ignore"):
            return components.answer(_expected(case_id, dtype)[0])
    except ValueError:
        return None


def _differ(case_id: str, one: str, other: str, dtype: str) -> bool:
    """Whether the case tells the bugs apart: one bug's error, where the other's is expected, fails tenfold."""
    _, expected = _expected(case_id, dtype)
    pair = [_answer(case_id, id_, dtype) for id_ in (one, other)]
    if pair[0] is None or pair[1] is None:
        return pair[0] is not pair[1]
    for name, expectation in expected.items():
        first, second = (np.asarray(answer[name], np.float64) for answer in pair if answer)
        if first.shape != second.shape or not np.array_equal(np.isfinite(first), np.isfinite(second)):
            return True
        distance = np.abs(np.where(np.isfinite(first), first - second, 0.0))
        if distance.size and distance.max() > 10 * expectation.bound:
            return True
    return False


@pytest.mark.conformance
def test_no_two_defects_are_the_same_alteration() -> None:
    claiming: dict[str, list[str]] = {id_: [] for id_ in OBSERVABLE}
    for case_id, id_ in CLAIMS:
        claiming[id_].append(case_id)
    for ids in claiming.values():
        ids.sort(key=lambda case_id: _dear(CASES[case_id]))
    same = [
        (one, other)
        for one, other in itertools.combinations(OBSERVABLE, 2)
        if not any(
            _differ(case_id, one, other, dtype)
            for id_ in (one, other)
            for dtype in DEFECTS[id_].dtypes
            for case_id in claiming[id_]
        )
    ]  # fmt: skip
    assert not same
