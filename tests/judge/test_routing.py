"""Decisions of routers: decided ones must agree, undecided ones are followed, and ports may return them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import every

from reference_numpy import preset
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import REAL, Case, numpy_dtype
from rosettaformer.judge.catalogue.alteration import on_result
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, lowered, near_ties, other_experts, tolerance
from rosettaformer.judge.expectation.orders import order, shuffled
from rosettaformer.judge.expectation.patching import patched
from rosettaformer.judge.expectation.routing import Decisions, Token
from rosettaformer.judge.ports.adapters.whole_model import _chosen
from rosettaformer.judge.result import judge
from rosettaformer.judge.suite.build import parameters_of
from rosettaformer.judge.suite.gradients import gradient
from rosettaformer.judge.suite.like_folders import cases_of

EXPERTS, CHOSEN, LAYERS = 6, 2, 2
CONFIG = preset("mixtral_8x7b", source_vocabulary=31, target_vocabulary=31, model_width=24, heads=4, key_value_heads=2, key_size=6,
                value_size=6, experts=EXPERTS, experts_per_token=CHOSEN, expert_width=12, decoder_layers=LAYERS)  # fmt: skip
TARGET = np.random.default_rng(1).integers(0, 31, (2, 40))
MASK = np.arange(40) >= np.array([[0], [3]])
ROUTED = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "gpt_oss", "glm4_moe")


def case_of(component: str, dtype: str, **given: Any) -> Case:
    values = parameters_of(CONFIG, "transformer", np.random.default_rng(0))
    own = {"source": None} if component == "transformer" else {}
    return Case("a", component, CONFIG, own | {"target": TARGET} | given, values).at(dtype)


def run(case: Case, changed: dict[Token, np.ndarray] | None = None, gradient: bool = False) -> tuple[dict[str, np.ndarray], Decisions]:
    """Returns the reference's answer in the case's dtype, with changed decisions, and all decisions."""
    decisions = Decisions(changed=changed, gradient=gradient)
    with decisions.recorded():
        return components.answer(case), decisions


def in_order(case: Case, seed: int) -> dict[str, np.ndarray]:
    with order(shuffled(seed)):
        return components.answer(case)


def excess(expected: tolerance.Expectations, answer: dict[str, np.ndarray]) -> float:
    return max(compare(one, answer[name]).excess for name, one in expected.items())


def test_an_undecided_choice_of_a_port_is_followed() -> None:
    """Random weights in bfloat16: rounding chooses other experts in another order of sums."""
    case = case_of("transformer", "bfloat16")
    expected = tolerance.expect(case)
    assert expected["output"].decisions == TARGET.size * LAYERS and expected["output"].undecided
    answer = next(answer for seed in range(100, 150) if excess(expected, answer := in_order(case, seed)) > 1)
    assert excess(near_ties.followed(case, expected, answer), answer) <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decided_choice_is_never_followed(dtype: str) -> None:
    case = case_of("transformer", dtype)
    expected, decisions, bounds = tolerance.decided(case, components.answer, False, {})
    open_ = {(token.row, token.place) for token, *_ in decisions.undecided(bounds)}
    row, place = next((row, place) for row, place in np.ndindex(TARGET.shape) if place > 2 and (row, place) not in open_)
    other_x = np.roll(decisions.made[0][row, place], 1)
    answer, _ = run(case, {Token(0, row, place): other_x})
    assert excess(near_ties.followed(case, expected, answer), answer) > 1


def test_gradients_follow_an_undecided_choice_and_no_decided_one() -> None:
    """A backward pass repeats the decisions of the forward pass, so that both take the other choice."""
    case = gradient(case_of("transformer", "bfloat16", target=TARGET[:1, :8])).at("bfloat16")
    expected, decisions, bounds = tolerance.decided(case, components.answer, False, {})
    assert expected["parameters.logits.kernel"].decisions == 8 * LAYERS
    options = {token: rivals[0] for token, _, rivals in decisions.undecided(bounds)}
    token, rival_x = next(iter(options.items()))
    decided = next(Token(0, 0, place) for place in range(8) if Token(0, 0, place) not in options)
    for other, chosen_x, follows in ((token, rival_x, True), (decided, np.roll(decisions.made[0][0, decided.place], 1), False)):
        answer, _ = run(case, {other: chosen_x}, gradient=True)
        assert excess(expected, answer) > 1
        assert (excess(near_ties.followed(case, expected, answer), answer) <= 1) == follows


def test_choices_in_two_layers_of_a_token_are_followed() -> None:
    """The second choice is open only after the first, and neither alone explains the output."""
    case = case_of("transformer", "bfloat16")
    expected, decisions, bounds = tolerance.decided(case, components.answer, False, {})
    firsts = [(token, rivals[0]) for token, _, rivals in decisions.undecided(bounds) if token.call == 0]
    pairs = (
        ({first: first_x}, {first: first_x, second: second_x})
        for first, first_x in firsts
        for second, _, (second_x, *_) in run(case.at("float64"), {first: first_x})[1].undecided(bounds)
        if second[1:] == first[1:] and second.call == 1
    )
    open_ = [both for one, both in pairs if excess(tolerance.decided(case, components.answer, False, one)[0], run(case, both)[0]) > 1]
    answer = run(case, open_[0])[0]
    assert excess(near_ties.followed(case, expected, answer), answer) <= 1


@pytest.mark.parametrize("precision", ["int8", "float16", "bfloat16"])
def test_files_of_a_lower_precision_follow_undecided_choices(precision: str) -> None:
    """Their noise is that of values, since the runs in the lower precision follow the decisions, too."""
    case = case_of("transformer", "float32")
    expected = lowered.expect(case, tolerance.expect(case), precision)
    _, decisions, bounds = tolerance.decided(case, components.answer, False, {}, lower=lowered.widening(precision))
    options = {token: rivals[0] for token, _, rivals in decisions.undecided(bounds)}
    assert expected["output"].undecided == len(options)
    decided = (Token(0, *place) for place in np.ndindex(TARGET.shape) if place[1] > 2 and Token(0, *place) not in options)
    others = {token: np.roll(decisions.made[0][token.row, token.place], 1) for token in decided}
    for choices, follows in ((options, True), (others, False)):
        wrong = (answer for token, chosen_x in choices.items() if excess(expected, answer := run(case, {token: chosen_x})[0]) > 1)
        answer = next(wrong)
        assert (excess(near_ties.followed(case, expected, answer), answer) <= 1) == follows


def searching(component: str, dtype: str) -> Case:
    mask = np.arange(6) >= np.array([[0], [2], [1], [0]])
    given: dict[str, Any] = {"prefix": np.random.default_rng(3).integers(0, 31, mask.shape), "prefix_mask_bp": mask}
    strategy = {"start_id": None, "end_id": 30, "max_new_tokens": 5} | ({"beam_size": 3, "n_best": 2} if component == "beam_search" else {})
    inputs = {"source": None, **given, **{f"strategy.{name}": value for name, value in strategy.items()}}
    return dataclasses.replace(case_of("transformer", dtype), component=component, inputs=inputs)


@pytest.mark.parametrize("component", ["greedy_search", "beam_search"])
def test_rows_of_a_search_are_open_from_a_step_with_undecided_experts(component: str) -> None:
    """Random weights in bfloat16, in other orders of sums."""
    case = searching(component, "bfloat16")
    expected, found = tolerance.expect(case), []
    for answer in (in_order(case, seed) for seed in range(103, 109)):
        if excess(expected, answer) > 1:
            found.append(near_ties.followed(case, expected, answer))
            assert excess(found[-1], answer) <= 1
    (tokens, *_) = expected
    assert any(0 < one[tokens].open < one[tokens].reference.size for one in found)
    wrong = {name: array[::-1] for name, array in answer.items()}  # the rows exchanged: all of them are open
    assert near_ties.followed(case, expected, wrong)[tokens].tried


@pytest.mark.parametrize("component", ["greedy_search", "beam_search"])
def test_a_search_with_other_experts_where_they_are_decided_is_wrong(component: str) -> None:
    case = searching(component, "float32")
    expected, decisions = tolerance.expect(case), run(case.at("float64"))[1]
    tokens = next(iter(expected))
    assert not expected[tokens].undecided
    assert (
        expected[tokens].decisions == sum(len(made) * made.shape[1] for made in decisions.made) - LAYERS * 3 * len(decisions.made[0]) // 4
    )
    answer, _ = run(case, {Token(0, 0, 3): np.roll(decisions.made[0][0, 3], 1)})
    found = near_ties.followed(case, expected, answer)
    assert excess(found, answer) > 1 and not found[tokens].open


def test_tokens_whose_choices_stay_open_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("transformer", "bfloat16")
    expected, decisions, bounds = tolerance.decided(case, components.answer, False, {})
    place = next(token.place for token, *_ in decisions.undecided(bounds) if token.row == 0)
    answer = {"output": expected["output"].reference.astype(np.float32).astype(expected["output"].dtype)}
    answer["output"][0, place] += 1  # no choice explains it
    assert excess(near_ties.followed(case, expected, answer), answer) > 1
    monkeypatch.setattr(other_experts, "RUNS", 0)
    rival = {token: rivals[0] for token, _, rivals in decisions.undecided(bounds) if token.call == 0}
    other, made = run(case, rival)
    chosen_btlx = np.stack(made.made, axis=2)
    assert near_ties.followed(case, expected, other)["output"].open
    assert not near_ties.followed(case, expected, other, chosen_btlx=chosen_btlx)["output"].open
    found = near_ties.followed(case, expected, answer)
    assert excess(found, answer) <= 1 and found["output"].open == TARGET.shape[1] - place
    answer["output"][1, :] += 1  # a decided one
    assert excess(near_ties.followed(case, expected, answer), answer) > 1


def test_only_tokens_that_are_compared_are_decisions() -> None:
    case = case_of("transformer", "float32", target_mask_bt=MASK)
    for compared, count in ((REAL, MASK.sum()), ("", TARGET.size)):
        assert tolerance.expect(dataclasses.replace(case, compared=compared))["output"].decisions == count * LAYERS


def test_cached_steps_count_positions_of_the_text() -> None:
    case = case_of("transformer", "float32")
    steps = dataclasses.replace(case, component="decode_in_steps", inputs={"target": TARGET, "memory_bsd": None, "splits": (30, 1, 9)})
    decisions = run(steps)[1]
    assert [call.first for call in decisions.calls] == [0] * LAYERS + [30] * LAYERS + [31] * LAYERS
    assert decisions.count() == TARGET.size * LAYERS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_returned_experts_are_wrong_if_decided_and_accepted_if_undecided(dtype: str) -> None:
    case = case_of("routed_experts", dtype)
    expected, decisions, bounds = tolerance.decided(case, components.answer, False, {})
    right = run(case)[0]["output"].copy()
    open_ = [(token, rivals[0]) for token, _, rivals in decisions.undecided(bounds)]
    of_open = {(token.row, token.place) for token, _ in open_}
    if dtype == "bfloat16":  # other experts at the last undecided token, which no later one depends on
        token, rival_x = max(open_, key=lambda one: (one[0].call, one[0].place))
        right = near_ties.followed(case, expected, {"output": right})["output"].reference.copy()
        right[token.row, token.place, token.call] = rival_x
    row, place = next((row, place) for row, place in np.ndindex(TARGET.shape) if (row, place) not in of_open)
    wrong = right.copy()
    wrong[row, place, 0] = np.roll(wrong[row, place, 0], 1)
    about = {"case": "a", "component": "routed_experts", "port": "p", "dtype": dtype, "device": "cpu", "mode": ""}
    for answer, status, count in ((right, "pass", 0), (wrong, "differs", 1)):
        found = judge(about, "outputs", {"output": answer}, near_ties.followed(case, expected, {"output": answer}))
        assert (found.status, found.wrong, found.decisions) == (status, count, TARGET.size * LAYERS)
        assert (found.undecided > 0) == (dtype == "bfloat16")


def test_ids_of_experts_may_come_in_any_order_and_are_checked() -> None:
    case = case_of("routed_experts", "float32", target_mask_bt=MASK)
    chosen_btlx = run(case)[0]["output"]
    expert_btlk = np.argsort(~run(case_of("routed_experts", "float32"))[0]["output"], axis=-1, kind="stable")[..., :CHOSEN]
    full = dataclasses.replace(case, inputs={"target": TARGET})
    for ids in (expert_btlk, expert_btlk[..., ::-1]):
        assert np.array_equal(_chosen(ids, full), run(full)[0]["output"])
    assert not _chosen(expert_btlk, case)[~MASK].any() and chosen_btlx.any()
    for ids in (expert_btlk[..., :1], expert_btlk + EXPERTS, expert_btlk.astype(float), expert_btlk[:, :-1]):
        with pytest.raises(ValueError):
            _chosen(ids, full)


def test_a_prompt_of_one_id_sends_almost_all_tokens_to_the_same_experts(tmp_path: Path) -> None:
    """A port that drops tokens beyond a capacity then drops many."""
    case = next(case for case in cases_of("mixtral", tmp_path, ["float32"]) if case.name == "repeated")
    for call in run(case.at("float64"))[1].calls:
        assert (call.chosen_btx.mean(axis=(0, 1)) > 0.9).sum() == CHOSEN


def test_the_bias_of_a_new_router_changes_choices(tmp_path: Path) -> None:
    case = next(case for case in cases_of("gpt_oss", tmp_path, ["float32"]) if case.id == "transformer/medium").at("float64")
    for layer, call in enumerate(run(case)[1].calls):
        bias_x = case.parameters[f"decoder.layers.{layer}.feed_forward.router.bias"]
        assert (call.choose(call.config, call.scores_btx - bias_x) != call.chosen_btx).any()


def _adversarial(folder: Path, family: str, kind: str, name: str) -> Case:
    new.write(family, folder / "a", size=kind, dtype="float32")
    (folder / "b").mkdir()
    return next(case for case in cases_of(str(folder / "a"), folder / "b", ["float32"]) if case.id == f"transformer/{name}").at("float32")


@pytest.mark.parametrize("family", every(4, ROUTED))
def test_equal_scores_are_undecided(family: str, tmp_path: Path) -> None:
    case = _adversarial(tmp_path, family, "ties", "medium")
    expected = tolerance.expect(case)
    assert expected["output"].undecided
    assert excess(near_ties.followed(case, expected, answer := in_order(case, 3)), answer) <= 1


@pytest.mark.parametrize(("family", "kind"), every(4, [*((family, "dyadic") for family in ROUTED), ("glm4_moe", "bias")]))
def test_a_choice_in_half_precision_is_wrong(family: str, kind: str, tmp_path: Path) -> None:
    case = _adversarial(tmp_path, family, kind, "batch")
    expected = tolerance.expect(case)
    assert expected["output"].undecided <= 1 < expected["output"].decisions
    low = on_result(lambda scores: scores.astype(numpy_dtype("bfloat16")).astype(scores.dtype))
    assert excess(near_ties.followed(case, expected, answer := run(case)[0]), answer) <= 1
    with patched({"experts.choice_scores": low}):
        answer = run(case)[0]
    assert excess(near_ties.followed(case, expected, answer), answer) > 1


@pytest.mark.parametrize(("family", "kind"), [("llama", "ties"), ("mixtral", "bias")])
def test_models_without_such_routers_are_refused(family: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        new.write(family, tmp_path / "a", size=kind)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("family", every(4, ROUTED))
def test_new_models_have_decisive_routers(family: str, tmp_path: Path) -> None:
    """Less than 1 % of the decisions in bfloat16 are undecided, and every expert is chosen."""
    cases = [
        case
        for case in cases_of(family, tmp_path, ["bfloat16"])
        if case.component == "transformer" and case.name in ("batch", "medium", "long")
    ]
    found = [tolerance.expect(case.at("bfloat16"))["output"] for case in cases]
    assert sum(one.undecided for one in found) < 0.01 * sum(one.decisions for one in found)
    long = next(case for case in cases if case.name == "long")
    assert all(call.chosen_btx.any(axis=(0, 1)).all() for call in run(long.at("float64"))[1].calls)
