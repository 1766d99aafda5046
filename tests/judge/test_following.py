"""Near ties of the searches: the judge follows a port's choice where rounding alone may explain it, and fails any other."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id, expect
from kinds import conformance
from messages import mentions

from reference_numpy import sampling
from reference_numpy.beams import Beam
from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.expectation import components, near_ties, tolerance
from rosettaformer.judge.expectation.choices import Chooser, Key, chosen_by
from rosettaformer.judge.result import Result, judge

PORT = "tests/ports/numpy_decoding.py"
SEARCHES = {id_: case for id_, case in all_by_id().items() if case.component in components.SEARCHES}
PLAIN, BEAMS = SEARCHES["greedy_search/plain"], SEARCHES["beam_search/n_best"]
ROW = {"case": "", "component": "", "port": "", "dtype": "", "device": "", "mode": ""}
NEAR = 1e-6

Answer = dict[str, np.ndarray]


class Other(Chooser):
    """Chooses slightly worse: the last of the tokens, or beams, that are within `margin` of the best."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin, self.count = margin, 0

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        near = np.flatnonzero(scores_bv[key[1]] >= scores_bv[key[1]].max() - self.margin)
        self.count += int(near[-1]) != own
        return int(near[-1])

    def ranked(self, key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        other = sorted(ranking, key=lambda beam: (-round(beam.score / self.margin), *(-id_ for id_ in beam.tokens)))[:count]
        self.count += [beam.tokens for beam in other] != [beam.tokens for beam in ranking[:count]]
        return other


class By(Chooser):
    """Replaces some choices by functions of the same arguments."""

    def __init__(self, **choices: Callable[..., Any]) -> None:
        super().__init__()
        vars(self).update(choices)


def worst(row: int, step: int) -> Chooser:
    def token(key: Key, own: int, scores_bv: np.ndarray, again: Any) -> int:
        scores_v = scores_bv[key[1]]
        return int(np.where(np.isfinite(scores_v), scores_v, np.inf).argmin()) if key[1:] == (row, step) else own

    return By(token=token)


def first(token_b: np.ndarray) -> Chooser:
    return By(token=lambda key, own, scores_bv, again: int(token_b[key[1]]) if key[2] == 0 else own)


def chosen(case: Case, chooser: Chooser) -> Answer:
    return components.answer(case, chosen_by(chooser))


def judged(case: Case, answer: Any) -> Result:
    return judge(ROW, "outputs", answer, near_ties.followed(case, expect(case), answer))


def tied(case: Case, first: int, *others: int, **inputs: Any) -> Case:
    """Returns the case with tokens that are always equally likely and lead to different continuations."""
    values = {name: value.copy() for name, value in case.parameters.items()}
    for other in others:
        values["logits.kernel"][:, other] = values["logits.kernel"][:, first]
        values["logits.bias"][other] = values["logits.bias"][first]
    return dataclasses.replace(case, parameters=values, inputs=dict(case.inputs) | inputs)


def common(case: Case) -> int:
    """Returns the most frequent token in the case's answers, apart from end and padding."""
    ids = next(iter(components.answer(case).values())).ravel()
    counts = np.bincount(ids[(ids != case.inputs["strategy.end_id"]) & (ids != case.config.padding_id)])
    return int(counts.argmax())


def of_two(case: Case, count: int = 1, **inputs: Any) -> Case:
    """Returns the case in which the most frequent token ties with another, or with several."""
    first = common(case)
    others = [id_ for id_ in range(3, case.config.target_vocabulary) if id_ != first]
    return tied(case, first, *others[-count:], **inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_other_of_two_tokens_that_tie_passes_and_so_does_what_follows_from_it(dtype: str) -> None:
    case = of_two(PLAIN).at(dtype)
    other = Other(NEAR)
    answer = chosen(case, other)
    assert other.count
    assert (answer["token_bn"] != components.answer(case)["token_bn"]).any()
    assert judged(case, answer).status == "pass"
    wrong = answer | {"log_p_bn": answer["log_p_bn"] * answer["log_p_bn"].dtype.type(2)}
    assert judged(case, wrong).message.startswith("log_p_bn: ")


def test_a_token_that_is_clearly_worse_or_no_answer_s_fails_by_its_row_its_step_and_its_margin() -> None:
    case = PLAIN.at("float32")
    own, answer = components.answer(case), chosen(case, worst(2, 1))
    result = judged(case, answer)
    first, wrong = int(own["token_bn"][2, 1]), int(answer["token_bn"][2, 1])
    assert result.status == "differs"
    assert mentions(result.message, f"row 2 … step 1 … {first}")
    assert f"{wrong}" in result.message
    needed, _, allowed = map(float, re.findall(r"\d[\d.]*(?:e-?\d+)?", result.message)[-3:])  # needed, the token, allowed
    assert 1e-7 < allowed < 1e-4 < needed
    assert result.message.count("in row") == 1
    answer = components.answer(case)
    answer["token_bn"][0, 0] = case.config.padding_id
    assert f"{case.config.padding_id}" in judged(case, answer).message
    case = of_two(PLAIN).at("float32")
    answer, worse = chosen(case, Other(NEAR)), chosen(case, worst(1, 0))
    answer["token_bn"][1], answer["log_p_bn"][1] = worse["token_bn"][1], worse["log_p_bn"][1]
    result = judged(case, answer)
    assert mentions(result.message, "row 1 … step 0")
    assert result.message.count("in row") == 1


def _drawn(case: Case, step: int = 0) -> tuple[Case, np.ndarray]:
    """Returns the case with uniform numbers that are, at one step, exactly between the drawn token and the next."""
    chooser = Chooser()
    token_bn = chosen(case, chooser)["token_bn"]
    uniform_bn = case.inputs["uniform_bn"].copy()
    for row in range(len(uniform_bn)):
        scores = chooser.scores[("token", row, step)] / case.inputs.get("strategy.temperature", 1.0)
        p = np.exp(scores - np.logaddexp.reduce(scores))
        uniform_bn[row, step] = p[: token_bn[row, step] + 1].sum()
    return dataclasses.replace(case, inputs=dict(case.inputs) | {"uniform_bn": uniform_bn}), token_bn[:, step]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_number_between_two_tokens_may_draw_either(dtype: str) -> None:
    case, token_b = _drawn(SEARCHES["sample/plain"])
    case = case.at(dtype)
    chooser = Chooser()
    chosen(case, chooser)
    for wanted_b in (token_b, [np.flatnonzero(np.isfinite(chooser.scores[("token", row, 0)][id_ + 1 :]))[0] + id_ + 1
                               for row, id_ in enumerate(token_b)]):  # fmt: skip
        answer = chosen(case, first(np.asarray(wanted_b)))
        assert judged(case, answer).status == "pass"


def test_a_number_within_a_token_draws_that_one() -> None:
    case, token_b = _drawn(SEARCHES["sample/plain"])
    case = dataclasses.replace(case, inputs=dict(case.inputs) | {"uniform_bn": case.inputs["uniform_bn"] * 0.999}).at("float32")
    answer = chosen(case, first(token_b + 1))
    assert mentions(judged(case, answer).message, "row 0 … step 0")


class Noisy(Chooser):
    """Chooses by scores that have an error."""

    def __init__(self, error: float, seed: int = 0) -> None:
        super().__init__()
        self.error, self.rng, self.count = error, np.random.default_rng(seed), 0

    def token(self, key: Key, own: int, scores_bv: np.ndarray, again: Callable[[np.ndarray], np.ndarray]) -> int:
        other = int(again(scores_bv + self.rng.choice([-self.error, self.error], scores_bv.shape))[key[1]])
        self.count += other != own
        return other


def _at_the_edge(cut: str) -> Case:
    """Returns a case whose first row is, at its first step, between two tokens that may remain and may both be drawn."""
    case = SEARCHES["sample/hot_top_p" if cut == "strategy.top_p" else "sample/top_k"]
    chooser = Chooser()
    chosen(case, chooser)
    scores = chooser.scores[("token", 0, 0)] / case.inputs.get("strategy.temperature", 1.0)
    p = np.exp(scores - np.logaddexp.reduce(scores))
    order_ = np.argsort(-p)
    if cut == "strategy.top_k":
        return tied(case, int(order_[2]), int(order_[3]))
    return dataclasses.replace(case, inputs=dict(case.inputs) | {cut: float(p[order_[:2]].sum())})


@pytest.mark.parametrize("cut", [conformance("strategy.top_k"), "strategy.top_p"])
def test_a_token_at_the_edge_of_a_cut_may_be_left_or_not(cut: str) -> None:
    case = _at_the_edge(cut)
    differing = 0
    for value in (0.3, 0.5, 0.65):
        uniform_bn = case.inputs["uniform_bn"].copy()
        uniform_bn[0, 0] = value
        one = dataclasses.replace(case, inputs=dict(case.inputs) | {"uniform_bn": uniform_bn}).at("float64")
        for seed in range(4):
            noisy = Noisy(5e-15, seed)
            answer = chosen(one, noisy)
            differing += noisy.count
            assert judged(one, answer).status == "pass", value
    assert differing
    assert judged(case.at("float64"), chosen(case, Noisy(0.3))).status == "differs"


def test_errors_of_all_scores_add_up_in_a_draw() -> None:
    """The sum of the first three is 0.502; with those 0.01 larger and the others 0.01 smaller it is 0.507."""
    scores_bv = np.log([[0.2, 0.3, 0.002, 0.25, 0.248]])
    for number, drawn in ((0.5065, True), (0.5075, False), (0.4955, True), (0.4945, False)):

        def again(other_bv: np.ndarray, number: float = number) -> np.ndarray:
            return sampling.draw(other_bv, np.array([number]))

        assert near_ties.could_choose(2, 0, scores_bv, again, 0.01) == drawn


@pytest.mark.parametrize("cut", ["nothing", "top_k", conformance("top_p")])
def test_what_any_error_of_the_scores_draws_might_be_drawn(cut: str) -> None:
    """Random score tables near the edge of a cut, and random errors in them."""
    rng, error, differing = np.random.default_rng(1), 1e-3, 0
    for _ in range(12_000 if cut == "top_p" else 1000):
        size = rng.integers(4, 12)
        scores_bv, uniform_b, count = rng.normal(0, 1.2, (1, size)), rng.random(1), int(rng.integers(1, size - 1))
        ranked = np.argsort(-scores_bv[0])
        options: dict[str, Any] = {}
        if cut == "top_k":
            scores_bv[0, ranked[count]] = scores_bv[0, ranked[count - 1]] + rng.normal(0, error / 2)
            options = {"top_k": count}
        elif cut == "top_p":
            p = np.exp(scores_bv[0, ranked] - np.logaddexp.reduce(scores_bv[0]))
            options = {"top_p": float(np.clip(p[:count].sum() + rng.normal(0, error / 4), 1e-9, 1))}

        def again(other_bv: np.ndarray, options: Any = options, uniform_b: np.ndarray = uniform_b) -> np.ndarray:
            return sampling.draw(sampling.truncate(other_bv, **options), uniform_b)

        other = again(scores_bv + rng.uniform(-error, error, scores_bv.shape))[0]
        if other != again(scores_bv)[0]:
            differing += 1
            assert near_ties.could_choose(int(other), 0, scores_bv, again, error)
    assert differing or cut == "nothing"


@pytest.mark.parametrize("name", ["n_best", *map(conformance, ("alpha_0", "prefix", "penalties"))])
def test_beams_that_tie_may_live_or_die(name: str) -> None:
    case = of_two(SEARCHES[f"beam_search/{name}"], 4)
    other = Other(NEAR)
    answer = {key: value.astype("float32") if value.dtype == "float64" else value for key, value in chosen(case, other).items()}
    assert other.count  # in float64 ties are exact on every machine
    case = case.at("float32")
    assert (answer["token_bwn"] != components.answer(case)["token_bwn"]).any()
    assert judged(case, answer).status == "pass"
    wrong = answer | {"score_bw": answer["score_bw"] * np.float32(1.001)}
    assert judged(case, wrong).message.startswith("score_bw: error")


def test_hypotheses_in_another_order_fail_unless_they_tie() -> None:
    case = BEAMS.at("float32")
    answer = components.answer(case)
    swapped = {name: value[:, [1, 0, *range(2, value.shape[1])]] for name, value in answer.items()}
    assert "place 1" in judged(case, swapped).message
    case = of_two(BEAMS).at("float32")
    values = {name: value.copy() for name, value in case.parameters.items()}
    values["target_embedding.table"][-1] = values["target_embedding.table"][common(BEAMS)]
    case = dataclasses.replace(case, parameters=values)
    answer = components.answer(case)
    row, place = np.argwhere(np.abs(np.diff(answer["score_bw"])) < NEAR)[0]
    for value in answer.values():
        value[row, [place, place + 1]] = value[row, [place + 1, place]]
    assert judged(case, answer).status == "pass"


def test_hypotheses_of_a_beam_that_must_die_and_a_search_that_stops_too_soon_fail() -> None:
    def second_best(key: Key, ranking: list[Beam], count: int) -> list[Beam]:
        """Keeps a row's second best beams alive instead of the best."""
        return ranking[1 : count + 1] if key == ("live", 1, 0) else ranking[:count]

    case = BEAMS.at("float32")
    result = judged(case, chosen(case, By(ranked=second_best)))
    assert result.status == "differs"
    assert "in row 1 hypothesis" in result.message
    case = SEARCHES["beam_search/alpha_2"].at("float32")
    result = judged(case, chosen(case, By(stop=lambda *_: True)))
    assert result.status == "differs"
    assert "hypothesis 0 is [" in result.message


def test_a_search_with_the_choices_of_another_scores_alike_and_ids_are_of_any_integer_type() -> None:
    case = of_two(BEAMS).at("bfloat16")
    expectation = tolerance.expect(case)["score_bw"]
    assert expectation.noise < 0.1 * np.abs(expectation.reference).max()
    case = of_two(PLAIN).at("float32")
    answer = chosen(case, Other(NEAR))
    assert judged(case, answer | {"token_bn": answer["token_bn"].astype(np.int32)}).status == "pass"


@pytest.mark.parametrize("name", ["greedy_search/plain", conformance("beam_search/n_best")])
def test_long_answers_are_followed(name: str) -> None:
    case = of_two(SEARCHES[name], **{"strategy.max_new_tokens": 64}).at("float32")
    assert judged(case, chosen(case, Other(NEAR))).status == "pass"


MALFORMED = {
    "nothing": lambda answer: {},
    "other names": lambda answer: {"tokens": answer["token_bn"]},
    "another shape": lambda answer: answer | {"token_bn": answer["token_bn"][:, :-1]},
    "floats": lambda answer: answer | {"token_bn": answer["token_bn"].astype(np.float32)},
    "ids beyond the vocabulary": lambda answer: answer | {"token_bn": answer["token_bn"] + 1000},
    "negative ids": lambda answer: answer | {"token_bn": answer["token_bn"] - 1000},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_answer_is_not_followed(what: str) -> None:
    case = PLAIN.at("float32")
    assert judged(case, MALFORMED[what](components.answer(case))).status == "differs"


@pytest.mark.product
def test_a_run_follows_a_port() -> None:
    cases = [dataclasses.replace(case, dtypes=DTYPES) for case in (of_two(PLAIN), of_two(BEAMS))] + [SEARCHES["sample/everything"]]
    rows = runner.run(cases, [PORT], ["float32", "bfloat16"])
    assert [row.status for row in rows] == ["pass"] * 5
    assert not any(row.message for row in rows)
