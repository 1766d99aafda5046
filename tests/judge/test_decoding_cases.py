"""The decoding cases are far from every tie, have distinct answers, pass through files and adapters, and are diagnosed."""

import dataclasses
import functools
import json
from collections.abc import Callable

import numpy as np
import pytest
from expectations import all_by_id
from kinds import conformance, every

from reference_numpy.beams import Beam
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components, near_ties
from rosettaformer.judge.expectation.choices import Chooser, Key, chosen_by
from rosettaformer.judge.ports.adapters import submodules
from rosettaformer.judge.suite import all_cases, case_files

PORT = "tests/ports/numpy_decoding.py"
CASES = {id_: case for id_, case in all_by_id().items() if case.component in components.DECODING}
SEARCHES = [case_id for case_id, case in CASES.items() if case.component in components.SEARCHES]
FAR = 1e-4  # far above float32 rounding


class Margins(Chooser):
    """The smallest error of the scores that would change a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.least = np.inf

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        for other in range(scores_bv.shape[1]):
            if other != own and near_ties.could_choose(other, key[1], scores_bv, again, FAR):
                self.least = 0.0
        return own

    def ranked(self, key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        scores = [beam.score for beam in ranking[: count + 1]]
        gaps = np.diff(scores[-2:] if key[0] == "live" else scores) if len(ranking) > count or key[0] == "kept" else np.array([])
        self.least = min(self.least, -gaps.max(initial=-np.inf))
        return ranking[:count]

    def stop(self, key: Key, live: list[Beam], kept: list[Beam], stops: Callable[[list[Beam], list[Beam]], bool]) -> bool:
        answers = [stops([beam._replace(score=beam.score + error) for beam in live], kept) for error in (-FAR, FAR)]
        self.least = self.least if answers[0] == answers[1] else 0.0
        return stops(live, kept)


@pytest.mark.parametrize("case_id", every(24, [conformance(one) if one == "sample/everything" else one for one in SEARCHES]))
def test_no_choice_of_a_search_is_near_a_tie(case_id: str) -> None:
    margins = Margins()
    components.answer(CASES[case_id], chosen_by(margins))
    assert margins.least >= FAR


@pytest.mark.parametrize("case_id", [case_id for case_id in CASES if case_id.startswith(("truncate", "draw", "penalise"))])
def test_no_table_of_scores_is_near_a_boundary(case_id: str) -> None:
    """Perturbing any number slightly changes the remaining or drawn tokens in no case, except where two numbers are equal."""
    case = CASES[case_id]
    (name,) = [name for name in case.inputs if name in ("scores_bv", "logits_bv")]
    before = components.answer(case)["output"]
    generator = np.random.default_rng(0)
    for _ in range(20):
        noise = FAR * generator.uniform(-1, 1, case.inputs[name].shape)
        if "ties" in case_id:
            noise[:] = noise[0, 0]
        after = components.answer(dataclasses.replace(case, inputs=dict(case.inputs) | {name: case.inputs[name] + noise}))["output"]
        if before.dtype.kind == "i":
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_array_equal(np.isfinite(after), np.isfinite(before))


def _lengths(case: Case) -> list[int]:
    answer = components.answer(case)
    ids = next(iter(answer.values()))
    ended = np.cumsum(ids == case.inputs["strategy.end_id"], axis=-1)
    return [int((row == 0).sum() + row.any()) for row in ended.reshape(-1, ids.shape[-1])]


def test_answers_end_at_different_times_and_differ_between_rows_and_strategies_are_plain() -> None:
    several = [case_id for case_id in SEARCHES if len(set(_lengths(CASES[case_id]))) > 1]
    assert len(several) >= 0.8 * len(SEARCHES)
    for component in components.SEARCHES:
        lengths = {length for case_id in SEARCHES if case_id.startswith(component) for length in _lengths(CASES[case_id])}
        assert len(lengths) >= 4
        assert 8 in lengths
    for case_id in SEARCHES:
        first, *others = next(iter(components.answer(CASES[case_id]).values()))
        if case_id != "greedy_search/nothing_may_follow":
            assert any(not np.array_equal(first, other) for other in others), case_id
    for case_id in SEARCHES:
        for name, value in CASES[case_id].inputs.items():
            if value is not None and not isinstance(value, np.ndarray):
                assert name.startswith("strategy.")
                assert type(value) in (int, float, bool), name
    json.dumps(case_files.row_of(CASES["decode_in_steps/prompt_first"]))


@pytest.mark.conformance
def test_ports_that_fix_a_config_have_the_cases_too() -> None:
    for fixed in (
        {"padding_id": 0},
        {"padding_id": None},
        {"source_vocabulary": 9, "target_vocabulary": 9},
        {"share_embeddings": True, "tie_logits": True},
    ):
        for case in all_cases(fixed):
            if case.component in components.DECODING and not case.excluded:
                components.answer(case)


@pytest.mark.conformance
def test_a_port_of_functions_answers_every_case_in_another_process() -> None:
    rows = runner.run(list(CASES.values()), [PORT], ["float32"])
    assert {row.status for row in rows} == {"pass"}
    assert len(rows) == len(CASES)


class Module:
    def search(self, x: int, compiled: bool = True) -> None:
        """Stands for a method of a module, or a function of one."""


def test_partial_functions_belong_to_their_module_and_only_what_takes_compiled_is_told() -> None:
    module, other = Module(), Module()
    partial, named = functools.partial(Module.search, module), functools.partial(Module.search, x=1)
    assert submodules.owner(partial) is submodules.owner(module.search) is module
    assert submodules.owner(named) is named and submodules.owner(Module.search) is Module.search
    assert submodules.owner(submodules.of_other(partial, other)) is other
    assert submodules.of_other(module.search, other) == other.search
    assert submodules.compiles_itself(partial) and not submodules.compiles_itself(np.add)
    for component in ("training_loss", "decode_in_steps", *components.SEARCHES):
        assert components.model_of(component) == "transformer"
    for component in ("draw", "layer_norm", "transformer"):
        assert components.model_of(component) == component
