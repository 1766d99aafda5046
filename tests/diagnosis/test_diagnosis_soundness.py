"""Diagnosis makes no false claim about noise, crashes, NaN, or parts whose difference is later undone."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mutation
import numpy as np
import pytest
from expectations import all_by_id
from kinds import conformance
from messages import mentions

from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.catalogue import Defect, all_defects
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.compare import compare
from rosettaformer.judge.diagnosis import altered
from rosettaformer.judge.diagnosis import words as written
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.evidence.invariances import broken_invariances
from rosettaformer.judge.diagnosis.evidence.near_matches import nearly
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses
from rosettaformer.judge.diagnosis.symptoms.conditions import condition
from rosettaformer.judge.expectation import components, tolerance

DEFECTS, SETTINGS = all_defects(), all_settings()
OBSERVABLE = [defect for defect in DEFECTS.values() if not defect.unobservable]
ROUNDING = ("NRM7", "PRC1", "ATT10", "ATT19")
CASES = list(all_by_id().values())

Output = dict[str, np.ndarray]


def _of(component: str, *names: str) -> list[Case]:
    return [case for case in CASES if case.component == component and (not names or case.name in names)]


def _shifted(reference: Mapping[str, Any], shift: Callable[[np.ndarray], Any]) -> Output:
    """Changes the floating outputs and keeps the others."""
    return {name: (value + shift(value)).astype(value.dtype) if _floating(value) else value for name, value in reference.items()}


def _floating(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"


def _sizes(expectations: Mapping[str, tolerance.Expectation] | None) -> list[float]:
    """Returns 0.3, and values near the tolerance of the altered reference on either side."""
    bounds = [one.bound for one in (expectations or {}).values() if _floating(np.empty(0, one.dtype)) and np.isfinite(one.bound)]
    return [0.3, *(factor * max(bounds) for factor in (0.3, 1.5) if bounds)]


def _wrong(probe: Case, size: float) -> Iterator[Output]:
    """Adds a constant, and noise of that size, to the reference's output."""
    reference = components.answer(probe)
    yield _shifted(reference, lambda value: size)
    yield _shifted(reference, lambda value: size * np.random.default_rng(0).uniform(-1, 1, value.shape))


def _equalled(combination: altered.Combination, probes: list[Case]) -> list[str]:
    """Returns the outputs that no alteration produced but that one explains."""
    found = []
    hypotheses = Hypotheses(probes, [])
    for size in _sizes(altered.expected(combination, probes[0])):
        for answers in zip(*(list(_wrong(probe, size)) for probe in probes), strict=True):
            evidence = Evidence(hypotheses, answers)
            found += [f"{probes[index].id} {size}" for index in evidence.explained(combination) if index in evidence.failing]
            found += [f"all, {size}"] * bool(evidence.failing and evidence.explains(combination))
    return found


def _component(defect: Defect) -> str:
    return mutation.smallest(defect) if defect in OBSERVABLE else defect.component


def _dear(defect: Defect) -> bool:
    """Whether the cases that reveal the bug are slow: gradients and searches."""
    return bool(components.forward_of(_component(defect))) or _component(defect) in components.SEARCHES


def _probes(defect: Defect, dtype: str, count: int) -> list[Case]:
    return [_short(case).at(dtype) for case in _of(_component(defect)) if dtype in case.dtypes and not case.excluded][:count]


def _short(case: Case) -> Case:
    """Limits a search to three tokens: each of its many orders costs a decoder step per token."""
    limit = {name: min(value, 3) for name, value in case.inputs.items() if name == "strategy.max_new_tokens"}
    limit |= {name: value[:, :3] for name, value in case.inputs.items() if name == "uniform_bn" and limit}
    return dataclasses.replace(case, inputs=case.inputs | limit)


def _with(id_: str, probes: Sequence[Case]) -> list[Output]:
    """Returns the outputs of a port with the bug."""
    return [answer for answer in mutation.as_port((DEFECTS[id_],), probes) if answer]


@pytest.mark.parametrize(
    "id_", [one.id if index % 5 == 0 and not _dear(one) else conformance(one.id) for index, one in enumerate(OBSERVABLE)]
)
def test_noise_and_constants_are_equalled_by_no_defect(id_: str) -> None:
    for dtype in DEFECTS[id_].dtypes:
        assert _equalled((DEFECTS[id_],), _probes(DEFECTS[id_], dtype, 1)) == []


@pytest.mark.parametrize("other", ROUNDING)
@pytest.mark.parametrize("id_", ["DRP1", "DRP2", "NRM4", "NRM8"])
def test_noise_and_constants_are_equalled_by_no_pair_with_a_rounding_defect(id_: str, other: str) -> None:
    component = "layer_norm" if id_ == "NRM4" else "encoder_layer"
    for dtype in ("float32", "bfloat16"):
        probes = [case.at(dtype) for case in _of(component, "large_mean", "post", "attention_dropout")]
        assert probes
        assert _equalled((DEFECTS[id_], DEFECTS[other]), probes[:1]) == []


@pytest.mark.conformance
@pytest.mark.parametrize(("id_", "dtype"), [*zip([*DEFECTS, *SETTINGS][::3], itertools.cycle(DTYPES), strict=False)])
def test_noise_and_constants_are_equalled_by_nothing_with_a_defect_of_rounding(id_: str, dtype: str) -> None:
    one = (DEFECTS | SETTINGS)[id_]
    probes = _probes(one, dtype, 1 if _dear(one) else 3)
    others = [other for other in ROUNDING if other != id_][: 1 if _dear(one) else None]
    for combination in [(one,), *((one, DEFECTS[other]) for other in others)]:
        assert not probes or _equalled(combination, probes) == []


@pytest.mark.parametrize("id_", [defect.id for defect in OBSERVABLE if defect.random or defect.component in ("dropout", "random_dropout")])
def test_what_is_said_to_draw_at_random_does_and_nothing_else(id_: str) -> None:
    probes = [case.at("float64") for case in _of("dropout") + _of("encoder_layer", "attention_dropout")]
    answers = [[altered.answer((DEFECTS[id_],), probe) for probe in probes] for _ in range(2)]
    assert any(map(altered.differ, *answers)) == DEFECTS[id_].random


def test_a_tolerance_wider_than_the_error_supports_nothing_and_is_said() -> None:
    """The constant rows of a layer norm without mean: NRM1 turns them into what rounding makes of zero."""
    probes = [case.at("float32") for case in _of("layer_norm")]
    answers = _with("NRM1", probes)
    evidence = Evidence(Hypotheses(probes, [DEFECTS["NRM1"]]), answers)
    assert Search(evidence).explain() == [(DEFECTS["NRM1"],)]
    assert [probes[index].name for index in evidence.silent((DEFECTS["NRM1"],))] == ["constant_rows"]
    assert mentions(written.where(evidence, (DEFECTS["NRM1"],)), f"{len(probes) - 1} of {len(probes)}")
    assert "layer_norm/constant_rows" in written.inconclusive(evidence, (DEFECTS["NRM1"],))
    alone = [index for index, probe in enumerate(probes) if probe.name == "constant_rows"]
    evidence = Evidence(Hypotheses([probes[index] for index in alone], [DEFECTS["NRM1"]]), [answers[index] for index in alone])
    assert Search(evidence).explain() == []


def test_an_alteration_is_named_by_its_digits_and_only_where_it_is_needed() -> None:
    known = mutation.hypotheses("layer_norm", "float64")
    answers = _with("NRM4", known.probes)
    evidence = Evidence(known, answers)
    assert Search(evidence).explain() == []
    assert Search(evidence).imprecise() == [(DEFECTS["NRM4"],)]
    shifted = [_shifted(answer, lambda value: 1e-9) for answer in answers]
    assert Search(Evidence(known, shifted)).imprecise() == []
    probes = [case.at("float32") for case in _of("layer_norm")]
    answers = _with("NRM1", probes)
    evidence = Evidence(Hypotheses(probes, OBSERVABLE), answers)
    for other in ("NRM7", "PRC1"):
        assert not evidence.explains((DEFECTS["NRM1"], DEFECTS[other]))


def test_a_name_but_for_its_digits_leaves_next_to_nothing_of_the_error() -> None:
    known, rng = mutation.hypotheses("layer_norm", "float64"), np.random.default_rng(0)

    def found(combination: altered.Combination, size: float) -> list[altered.Combination]:
        answers = [
            _shifted(one, lambda value: size * rng.standard_normal(value.shape))
            for one in mutation.as_port(combination, known.probes)
            if one
        ]
        near = nearly(Evidence(known, answers))
        return near.found if near else []

    assert found((DEFECTS["NRM2"],), 1e-8) == [(DEFECTS["NRM2"],)]
    assert found((DEFECTS["NRM2"],), 0.03) == []
    assert found((), 0.3) == found((), 1e-8) == []
    for place, factor in itertools.product(("normalization.layer_norm",), (0.97, 1.001, 1.02)):
        assert found((mutation.larger(place, factor),), 1e-8) == []


def test_a_failure_equals_nothing_and_supports_are_the_judges_own_comparison() -> None:
    assert not any(altered.equal(*pair) for pair in ((None, None), ({}, None), (None, {})))
    probe = _of("layer_norm", "plain")[0].at("float32")
    clean = tolerance.expect(probe)
    wide = {name: dataclasses.replace(one, noise=1.0, noise_rmse=1.0) for name, one in clean.items()}
    answer = _shifted(components.answer(probe), lambda value: 0.3)
    assert compare(wide["output"], answer["output"]).excess <= 1
    assert altered.equal(wide, answer)
    assert not altered.supports(clean, wide, answer)


def _positions(*batches: int, width: int = 13) -> list[Case]:
    case = _of("layer_norm", "plain")[0]
    sizes = case.config.replace(model_width=width)
    return [dataclasses.replace(case, config=sizes, inputs={"x_btd": np.ones((b, 2 + b, width))}) for b in batches]


def _windowed(*batches: int) -> list[Case]:
    """Returns the same with local layers, whose window is the length of the third batch."""
    local = {"layer_pattern": ("local",), "window": 5}
    return [dataclasses.replace(case, config=case.config.replace(**local)) for case in _positions(*batches)]


def _dropped(cases: list[Case], rate: float) -> list[Case]:
    return [dataclasses.replace(case, config=case.config.replace(dropout_rate=rate)) for case in cases]


@pytest.mark.parametrize(
    ("failed", "answered", "words"),
    [
        (_positions(1, 3, 4), _positions(2), "not where batch is 2 and target length is 4"),
        (_positions(2), _positions(1, 3), "only where batch is 2 and target length is 4"),
        (_positions(5, 7), _positions(1, 3), "only where batch is at least 5 and target length is at least 7"),
        (_positions(1, 3), _positions(5, 7), "not where batch is at least 5 and target length is at least 7"),
        (_positions(1, 3, 5), _positions(2, 4), "only where batch is odd and target length is odd"),
        (_positions(4, 6), _positions(1, 3), "only where batch is at least 4 and target length is at least 6"),  # and even
        (_windowed(4, 6), _windowed(1, 3), "only where target length is above the window"),
        (_positions(2, 5), _positions(2, 7, 3), ""),
        (_positions(1, 3), [], ""),
        (_dropped(_positions(2, 3), 0.3), _positions(2, 3), ""),  # a rate without draws is no cause
    ],
)  # fmt: skip
def test_where_a_port_fails_is_a_property_of_all_its_failures_and_of_nothing_else(
    failed: list[Case], answered: list[Case], words: str
) -> None:
    assert condition(failed, answered) == words


def test_a_loss_which_is_of_all_rows_is_not_said_to_depend_on_them() -> None:
    probes = [case.at("float64") for case in _of("cross_entropy")][:2]
    answers = [_shifted(components.answer(probe), lambda value: 0.3) for probe in probes]
    evidence = Evidence(Hypotheses(probes, []), answers)
    assert evidence.failing
    assert broken_invariances(evidence, lambda cases: [(case, "outputs", answers[0]) for case in cases]) == []


def test_hypotheses_are_listed_only_where_little_of_the_error_is_left() -> None:
    known = mutation.hypotheses("layer_norm", "float64")
    evidence = Evidence(known, [_shifted(components.answer(probe), lambda value: 1e3) for probe in known.probes])
    assert evidence.nearest() == []
    assert "100%" not in written.unexplained(evidence, False, ())
    infinite = [_shifted(components.answer(probe), lambda value: np.nan) for probe in known.probes]
    assert Evidence(known, infinite).nearest() == []
    known, rng = mutation.hypotheses("layer_norm", "float64"), np.random.default_rng(0)
    answers = _with("NRM23", known.probes)

    def said(size: float) -> str:
        noisy = [_shifted(answer, lambda value: size * rng.standard_normal(value.shape)) for answer in answers]
        return written.unexplained(Evidence(known, noisy), False, ())

    assert "NRM23 (" in said(1e-3)
    assert "NRM23" not in said(3.0)


def test_what_is_explained_in_part_is_said_with_what_explains_the_same() -> None:
    known = mutation.hypotheses("layer_norm", "float64")
    answers = _with("NRM23", known.probes)
    names = [probe.name for probe in known.probes]
    other, right = names.index("plain"), names.index("square")
    answers[other] = _shifted(answers[other], lambda value: 0.3)
    answers[right] = components.answer(known.probes[right])
    text = written.partly([(DEFECTS["NRM23"],)], [(DEFECTS["NRM23"],)], Evidence(known, answers))
    assert "layer_norm/plain" in text and "layer_norm/square" in text
    # Fills of -1e4 and -1e9 in all outputs except one, which is incorrect in another way
    known = Hypotheses([case.at("float64") for case in _of("multi_head_attention")][:8], [DEFECTS["ATT12"], DEFECTS["ATT13"]])
    answers = _with("ATT13", known.probes)
    evidence = Evidence(known, answers)
    wrong = min(evidence.right())
    answers[wrong] = _shifted(answers[wrong], lambda value: 0.3)
    evidence = Evidence(known, answers)
    base = Search(evidence).cover()
    names = [base, *Search(evidence).alike(base)]
    assert {one.id for (one,) in names} == {"ATT12", "ATT13"}
    text = written.partly(names, [base], evidence)
    assert all(one.name in text for combination in names for one in combination)


def test_losses_of_digits_that_allow_the_same_errors_are_all_named() -> None:
    both = [(DEFECTS["NRM4"],), (DEFECTS["PRC4"],)]
    assert mentions(written.imprecise(both, "float64"), f"{DEFECTS['NRM4'].name} … {DEFECTS['PRC4'].name} … float64")
