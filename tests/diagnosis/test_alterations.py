"""Bugs of training and decoding, as published code has them, are named: plain functions replace the reference's."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import flat
import numpy as np
import pytest
from expectations import all_by_id
from kinds import conformance, every
from messages import each_mentions

from reference_numpy import inputs, stacks
from reference_numpy.parameters import flatten, nest
from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.diagnosis.evidence import Evidence, Search
from rosettaformer.judge.diagnosis.hypotheses import Hypotheses, candidates
from rosettaformer.judge.expectation import components

ALTERATIONS = [
    [one for one in all_defects().values() if not one.unobservable],
    list(all_settings().values()),
]
Plain = Callable[[Case], Any]


def _evidence(component: str, plain: Plain, names: tuple[str, ...], dtype: str) -> Evidence:
    every = [case for case in all_by_id().values() if case.component == component and dtype in case.dtypes]
    cases = [case.at(dtype) for case in every if not names or case.name in names]
    with np.errstate(all="ignore"):
        answers = [components.named_outputs(plain(case)) for case in cases]
    return Evidence(Hypotheses(cases, *(candidates(cases, kind) for kind in ALTERATIONS)), answers)


def _named(component: str, plain: Plain, names: tuple[str, ...] = (), dtype: str = "float64") -> set[str]:
    """Returns what explains the outputs of a plain function: alterations, or else constants; empty if all outputs are correct."""
    evidence = _evidence(component, plain, names, dtype)
    if not evidence.failing:
        return set()
    search = Search(evidence)
    return {one.id for combination in search.explain() or search.constants() for one in combination}


def _loss(score: Callable[[np.ndarray, np.ndarray, float], np.ndarray], mean: Callable[..., float] | None = None) -> Plain:
    """score: (log p `n v`, labels `n`, smoothing) -> the loss of each label."""

    def plain(case: Case) -> np.ndarray:
        given: Mapping[str, Any] = case.inputs
        x_btv, label_bt = given["logits_btv"], given["label_bt"].astype(int)
        mask_bt = given.get("mask_bt", np.ones(label_bt.shape, bool))
        shifted = x_btv - x_btv.max(-1, keepdims=True)
        log_p = (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).reshape(-1, x_btv.shape[-1])
        loss_bt = np.where(mask_bt, score(log_p, label_bt.ravel(), given.get("smoothing", 0.0)).reshape(label_bt.shape), 0)
        count = given.get("total") or max(mask_bt.sum(), 1)
        return np.asarray(mean(loss_bt, mask_bt, count) if mean else loss_bt.sum() / count)

    return plain


def _nll(log_p: np.ndarray, label: np.ndarray) -> np.ndarray:
    return -log_p[np.arange(len(label)), label]


def _annotated(padding: int) -> Callable[[np.ndarray, np.ndarray, float], np.ndarray]:
    def score(log_p: np.ndarray, label: np.ndarray, smoothing: float) -> np.ndarray:
        true_dist = np.full(log_p.shape, smoothing / (log_p.shape[1] - 2))
        true_dist[np.arange(len(label)), label] = 1 - smoothing
        true_dist[:, padding] = 0
        return np.where(true_dist > 0, true_dist * (np.log(np.maximum(true_dist, 1e-300)) - log_p), 0).sum(1)

    return score


LOSSES: list[tuple[str, Plain]] = [
    ("", _loss(lambda log_p, label, e: (1 - e) * _nll(log_p, label) - e * log_p.mean(1))),
    ("LOS9", _loss(_annotated(2))),
    ("smoothing=sum", _loss(lambda log_p, label, e: (1 - e) * _nll(log_p, label) - e * log_p.sum(1))),
    ("smoothing=V - 1 of all", _loss(lambda log_p, label, e: (1 - e) * _nll(log_p, label) - e / (log_p.shape[1] - 1) * log_p.sum(1))),
    ("loss=log(p of at least 1e-07)", _loss(lambda log_p, *rest: _smooth(np.log(np.clip(np.exp(log_p), 1e-7, 1 - 1e-7)), *rest))),
    ("loss=rows", _loss(lambda *given: _smooth(*given), lambda loss_bt, mask_bt, count: loss_bt.sum() / len(loss_bt))),
    ("loss=log2", _loss(lambda *given: _smooth(*given) / np.log(2))),
    ("loss.factor=0.3", _loss(lambda *given: 0.3 * _smooth(*given))),
]


def _smooth(log_p: np.ndarray, label: np.ndarray, smoothing: float) -> np.ndarray:
    return (1 - smoothing) * _nll(log_p, label) - smoothing * log_p.mean(1)


def _adam(step: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Plain:
    """step: (p, g, m, v, n, lr, b1, b2, eps, wd) -> p, m, v, as a loop over parameters calls it."""

    def plain(case: Case) -> dict[str, Any]:
        given = nest(case.inputs)
        trees = [flatten(given[name]) for name in ("parameters", "gradients", "first_moment", "second_moment")]
        numbers = [given[name] for name in ("step", "learning_rate", "beta_1", "beta_2", "epsilon")]
        found: dict[str, dict[str, Any]] = {"parameters": {}, "first_moment": {}, "second_moment": {}}
        for name in trees[0]:
            decay = given["weight_decay"] if name.rpartition(".")[2] in ("kernel", "table") else 0.0
            new = step(*(tree[name] for tree in trees), *numbers, decay)
            for part, value in zip(found, new, strict=True):
                found[part][name] = value
        return {part: nest(tree) for part, tree in found.items()}

    return plain


def _step(
    quotient: Callable[..., Any] = lambda m, v, c1, c2, eps: m / c1 / (np.sqrt(v / c2) + eps),
    decay: Callable[[float, float], float] = lambda lr, wd: lr * wd,
) -> Callable[..., Any]:
    """quotient: (moments, both corrections, epsilon) -> the factor of the rate. decay: takes both rates."""

    def step(p: Any, g: Any, m: Any, old: Any, n: int, lr: float, b1: float, b2: float, eps: float, wd: float) -> Any:
        m, v = b1 * m + (1 - b1) * g, b2 * old + (1 - b2) * g**2
        return p - lr * quotient(m, v, 1 - b1**n, 1 - b2**n, eps) - decay(lr, wd) * p, m, v

    return step


UPDATES: list[tuple[str, Callable[..., Any]]] = [
    ("", _step()),
    ("OPT6", _step(decay=lambda lr, wd: wd)),
    ("OPT2", _step(lambda m, v, c1, c2, eps: m / c2 / (np.sqrt(v / c1) + eps))),
    ("OPT2", _step(lambda m, v, c1, c2, eps: m / c1 / (np.sqrt(v) / c2 + eps))),
    ("OPT1", _step(lambda m, v, c1, c2, eps: np.sqrt(c2) / c1 * m / (np.sqrt(v) + eps))),
    ("OPT7", _step(lambda m, v, c1, c2, eps: m / c1 / np.sqrt(v / c2 + eps))),
    ("adam.decay=0.3", _step(decay=lambda lr, wd: 0.3 * lr * wd)),
]


def _rate(rate: Callable[[Any, int, int], Any]) -> Plain:
    def plain(case: Case) -> np.ndarray:
        steps = np.asarray(case.inputs["step"])
        rates = [rate(int(n), case.config.model_width, case.inputs["warmup"]) for n in steps.ravel()]
        return np.asarray(rates, np.float64).reshape(steps.shape)

    return plain


RATES: list[tuple[str, Callable[[Any, int, int], float]]] = [
    ("", lambda n, d, w: d**-0.5 * min(n**-0.5, n * w**-1.5)),
    ("OPT8", lambda n, d, w: d**-0.5 * min(n, w) / w**1.5),
    ("rate=no width", lambda n, d, w: min(n**-0.5, n * w**-1.5)),
    ("OPT8", lambda n, d, w: d**-0.5 * (n * w**-1.5 if n <= w else w**0.5 / n)),
    ("rate.factor=2", lambda n, d, w: 2 * d**-0.5 * min(n**-0.5, n * w**-1.5)),
    ("rate.power=-0.8", lambda n, d, w: d**-0.5 * (n * w**-1.5 if n <= w else w**-0.5 * (n / w) ** -0.8)),
]


TRAINING = [
    *(("cross_entropy", id_, plain) for id_, plain in LOSSES),
    *(("adam", id_, _adam(step)) for id_, step in UPDATES),
    *(("noam", id_, _rate(rate)) for id_, rate in RATES),
]


@pytest.mark.parametrize(("component", "id_", "plain"), every(2, TRAINING), ids=[f"{component} {id_}" for component, id_, _ in TRAINING])
def test_a_mistake_of_training_is_named(component: str, id_: str, plain: Plain) -> None:
    assert _named(component, plain) == {id_} - {""}


class _Naive:
    """Log p of the next token of one row, from the whole model."""

    def __init__(self, case: Case, row: int) -> None:
        self.parameters, self.config = nest(case.parameters), case.config
        given = nest(case.inputs)
        self.strategy, self.source = given["strategy"], given["source"][row : row + 1]
        real = given["source"] != case.config.padding_id if "source_mask_bs" not in given else given["source_mask_bs"]
        self.real = real[row : row + 1]
        self.memory = flat.encode(self.parameters, self.config, self.source, self.real)
        self.prefix = list(given["prefix"][row]) if "prefix" in given else [self.strategy["start_id"]]

    def logits(self, tokens: list[int]) -> np.ndarray:
        target = np.array([[*self.prefix, *tokens]])
        logits = flat.decode(self.parameters, self.config, target, self.memory, self.real)[0, -1].copy()
        barred = {self.config.padding_id, self.strategy["start_id"]} - {None, self.strategy["end_id"]}
        logits[sorted(barred)] = -np.inf
        return logits


def _log_p(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _answers(tokens: list[list[int]], scores: list[list[float]], case: Case, room: int) -> dict[str, np.ndarray]:
    pad = case.inputs["strategy.end_id"] if case.config.padding_id is None else case.config.padding_id
    filled = [[*row, *[pad] * (room - len(row))] for row in tokens]
    return {"token_bn": np.array(filled), "log_p_bn": np.array([[*row, *[0.0] * (room - len(row))] for row in scores], np.float32)}


def _greedy(fewer: int = 0, penalised: bool = False, padded: bool = False) -> Plain:
    """fewer: this many tokens fewer must precede the end. penalised: log p is taken with the end forbidden.
    padded: a row counts as done before its end token is written."""

    def plain(case: Case) -> dict[str, np.ndarray]:
        tokens, scores = [], []
        for row in range(len(case.inputs["source"])):
            model, answer, log_p = _Naive(case, row), list[int](), list[float]()
            most, end = model.strategy["max_new_tokens"], model.strategy["end_id"]
            while len(answer) < most and (not answer or answer[-1] != end):
                logits = model.logits(answer)
                before = _log_p(logits)
                if len(answer) < model.strategy.get("min_new_tokens", 0) - fewer:
                    logits[end] = -np.inf
                answer.append(int(logits.argmax()))
                log_p.append((_log_p(logits) if penalised else before)[answer[-1]])
            ended = padded and answer[-1] == end
            tokens.append(answer[:-1] if ended else answer)
            scores.append(log_p[:-1] if ended else log_p)
        return _answers(tokens, scores, case, most)

    return plain


def _beam(length: Callable[[int], float] = lambda n: (5 + n) / 6, candidates: int = 0, unfinished: bool = False) -> Plain:
    """length: the base of the power alpha. candidates: ends are sought among this many times the beams; 0: every beam ends.
    unfinished: beams still live at the end count as answers."""

    def plain(case: Case) -> dict[str, np.ndarray]:
        found = [_row(_Naive(case, row)) for row in range(len(case.inputs["source"]))]
        count, most = found[0][1], found[0][2]
        pad = case.config.padding_id
        tokens = [[[*answer, *[pad] * (most - len(answer))] for _, answer in row[:count]] for row, *_ in found]
        return {"token_bwn": np.array(tokens), "score_bw": np.array([[score for score, _ in row[:count]] for row, *_ in found], np.float32)}

    def _row(model: _Naive) -> tuple[list[tuple[float, list[int]]], int, int]:
        given = model.strategy
        size, most, end, alpha = given["beam_size"], given["max_new_tokens"], given["end_id"], given["alpha"]
        live: list[tuple[float, list[int]]] = [(0.0, [])]
        done: list[tuple[float, list[int]]] = []
        for n in range(1, most + 1):
            steps = [(score + p, [*beam, id_]) for score, beam in live for id_, p in enumerate(_log_p(model.logits(beam))) if p > -np.inf]
            steps.sort(key=lambda one: (-one[0], one[1][-1]))
            chosen = steps[: candidates * size] if candidates else steps
            done += [(score / length(n) ** alpha, beam) for score, beam in chosen if beam[-1] == end]
            live = [one for one in chosen if one[1][-1] != end][:size]
        if unfinished:
            done += [(score / length(most) ** alpha, beam) for score, beam in live]
        done.sort(key=lambda one: (-one[0], one[1]))
        return [*done, *[(-np.inf, [])] * size], given.get("n_best", 1), most

    return plain


GREEDY = ("greedy_search", ("plain", "min_new_tokens", "min_new_tokens_exactly"))
BEAMS = ("beam_search", ("alpha_0.6", "alpha_2", "n_best"))
SEARCHES: dict[str, tuple[str, tuple[str, ...], str, Plain]] = {
    "greedy, right": (*GREEDY, "", _greedy()),
    "greedy, early end": (*GREEDY, "min_new_tokens - 1 or penalties of=prefix counted", _greedy(fewer=1)),
    "greedy, padded end": (*GREEDY, "answer=padded end", _greedy(padded=True)),
    "greedy, log p": (*GREEDY, "log p=after penalties", _greedy(penalised=True)),
    "beams, right": (*BEAMS, "", _beam()),
    "beams, length": (*BEAMS, "GEN8", _beam(lambda n: (4 + n) / 6)),
    "beams, ends": (*BEAMS, "GEN10", _beam(candidates=2)),
    "beams, unfinished": (*BEAMS, "beams=unfinished ones kept", _beam(unfinished=True)),
}  # fmt: skip


def _attention(order: Callable[[np.ndarray], np.ndarray], contraction: str = "bhts,bshe->bthe") -> Plain:
    """Heads of the values in another order, or another sum over them, in a plain attention with one key head per query head."""

    def plain(case: Case) -> np.ndarray:
        q, k, v = (case.inputs[name] for name in ("query_bthk", "key_bsgk", "value_bsge"))
        logits = np.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
        visible = np.tri(q.shape[1], dtype=bool) if case.inputs.get("causal") else True
        weights = np.exp(logits - logits.max(-1, keepdims=True)) * visible
        return np.einsum(contraction, weights / weights.sum(-1, keepdims=True), order(v))

    return plain


def _feed_forward(case: Case) -> np.ndarray:
    """A convolution of width 1 over an input that is reshaped to `b d t` instead of transposed."""
    x, weights = case.inputs["x_btd"], nest(case.parameters)
    channels = x.reshape(x.shape[0], x.shape[2], x.shape[1])
    hidden = np.einsum("bdt,df->bft", channels, weights["hidden"]["kernel"]) + weights["hidden"]["bias"][:, None]
    output = np.einsum("bft,fd->bdt", np.maximum(hidden, 0), weights["output"]["kernel"]) + weights["output"]["bias"][:, None]
    return output.transpose(0, 2, 1)


def _with(module: Any, name: str, wrong: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plain:
    def plain(case: Case) -> Any:
        with mock.patch.object(module, name, wrong(getattr(module, name))):
            return components.answer(case)

    return plain


def _rows_of_the_mask(true: Callable[..., Any]) -> Callable[..., Any]:
    """The decoder's own mask as `b 1 t 1`: `(target != pad).unsqueeze(1).unsqueeze(3)`."""

    def wrong(own: Any, config: Any, x_btd: np.ndarray, memory: Any, mask_bhts: np.ndarray, *rest: Any) -> np.ndarray:
        return true(own, config, x_btd, memory, mask_bhts.swapaxes(2, 3), *rest)

    return wrong


def _tokens_alone(true: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(parameters: Any, config: Any, side: str, token: np.ndarray, *rest: Any) -> np.ndarray:
        if side == "source":
            return true(parameters, config, side, token, *rest)
        return parameters[inputs.table(config, side)]["table"][token] * (config.model_width**0.5 if config.scale_embedding else 1)

    return wrong


PADDED = ("transformer", ("ragged", "left_padding", "same_length"))
ATTENTION, FEED_FORWARD = "scaled_dot_product_attention", "feed_forward"
MODELS: dict[str, tuple[str, tuple[str, ...], str, Plain]] = {
    "the target's mask by query": (*PADDED, "ATT27", _with(stacks, "decoder", _rows_of_the_mask)),
    "the target without positions": (
        "transformer", ("plain", "ragged"), "positions=none of the target", _with(inputs, "embed", _tokens_alone),
    ),
    "values reversed": (ATTENTION, ("plain",), "values=reversed", _attention(lambda v: v[:, :, ::-1])),
    "values rolled": (
        ATTENTION, ("plain",), "heads of values=rolled by 1", _attention(lambda v: np.roll(v, 1, axis=2))
    ),
    "a sum over queries": (
        ATTENTION, ("causal",), "weights=transposed", _attention(lambda v: v, "bhts,bthe->bshe")
    ),
    "a reshape": (FEED_FORWARD, ("relu",), "feed-forward=read", _feed_forward),
}  # fmt: skip
SLOW = [conformance(name) for name in SEARCHES if name != "greedy, right"]


@pytest.mark.parametrize("name", [*every(2, MODELS), "greedy, right", *SLOW])
def test_a_mistake_of_a_model_or_a_search_is_named(name: str) -> None:
    component, cases, ids, plain = {**MODELS, **SEARCHES}[name]
    named = _named(component, plain, cases, "float32" if name in SEARCHES else "float64")
    assert each_mentions(named, ids.split(" or ") if ids else [])  # ids that these cases cannot tell apart
