"""Settings of how a token is chosen: penalties, truncation, sampling."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference_numpy import softmax

from .alteration import Alteration, Array, bound, on_arguments, on_call, on_result, settings


def choices() -> Iterator[Alteration]:
    """Yields the settings of penalties, truncation and sampling."""
    yield from _penalties()
    yield from _truncations()
    yield from _draws()


def _penalised(change: Callable[[Array, Array, float], Array]) -> Callable:
    """Penalizes by a function of the scores, each token's count in the target, and the penalty."""

    def penalised(scores_bv: Array, token_bn: Array, repetition_penalty: float, mask_bn: Any, **others: Any) -> dict[str, Any]:
        real_bn = np.ones(token_bn.shape, bool) if mask_bn is None else mask_bn
        ids = np.arange(scores_bv.shape[1])
        count_bv = ((token_bn[..., None] == ids) & real_bn[..., None]).sum(axis=1)
        if repetition_penalty != 1:
            scores_bv = np.where(count_bv > 0, change(scores_bv, count_bv, repetition_penalty), scores_bv).astype(scores_bv.dtype)
        return {"scores_bv": scores_bv, "repetition_penalty": 1.0}

    return on_call(penalised)


def _by_sign(x: Array, penalty: Any) -> Array:
    return np.where(x > 0, x / penalty, x * penalty)


def _longer(count: int) -> Callable:
    return on_call(lambda no_repeat_ngram, **others: {"no_repeat_ngram": max(no_repeat_ngram + count, 1) if no_repeat_ngram else 0})


def _fewer(part: Callable[[Array], Array]) -> Callable:
    """Looks for tokens only in a part of the target."""
    return on_call(lambda token_bn, mask_bn, **others: {"token_bn": part(token_bn), "mask_bn": None if mask_bn is None else part(mask_bn)})


def _penalties() -> Iterator[Alteration]:
    fix = "for each token in the target: x / penalty if the score x is positive, otherwise x penalty"
    rows: dict[str, tuple[str, Callable]] = {
        "each time": ("a token is penalized once per occurrence in the target", _penalised(lambda x, count, c: _by_sign(x, c**count))),
        "multiplied": ("every score is multiplied by the penalty", _penalised(lambda x, count, c: x * c)),
        "exchanged": ("positive scores are multiplied by the penalty, negative scores divided",
                      _penalised(lambda x, count, c: _by_sign(x, 1 / c))),
        "subtracted": ("the penalty is subtracted from the score", _penalised(lambda x, count, c: x - c)),
        "subtracted each time": ("the penalty is subtracted once per occurrence in the target",
                                 _penalised(lambda x, count, c: x - c * count)),
        "log subtracted": ("the logarithm of the penalty is subtracted from the score", _penalised(lambda x, count, c: x - np.log(c))),
        "padding": ("padding is penalized like a token of the target", on_arguments(mask_bn=None)),
        "last token": ("only the last token is penalized", _penalised_of(lambda token_bn: token_bn[:, -1:])),
        "not last token": ("the last token is not penalized", _penalised_of(lambda token_bn: token_bn[:, :-1])),
    }  # fmt: skip
    yield from settings("penalty=", "penalise", fix, rows)
    fix = "set the score to -inf for a token that would complete an n-gram already in the target"
    rows = {
        "n + 1": ("(n + 1)-grams are forbidden instead of n-grams", _longer(1)),
        "n - 1": ("(n - 1)-grams are forbidden instead of n-grams", _longer(-1)),
        "without the last": ("the last token is ignored when looking for n-grams", _fewer(lambda token_bn: token_bn[:, :-1])),
        "without the first": ("the first token is ignored when looking for n-grams", _fewer(lambda token_bn: token_bn[:, 1:])),
    }  # fmt: skip
    yield from settings("ngrams=", "penalise", fix, rows)
    rows = {
        "first run": ("only the first of the forbidden tokens is forbidden", _one_ending(0)),
        "last run": ("only the last of the forbidden tokens is forbidden", _one_ending(-1)),
    }
    yield from settings("ngrams=", "penalise", fix, rows, "sampling.endings")


def _penalised_of(part: Callable[[Array], Array]) -> Callable:
    """Penalizes only this part of the target; n-grams still cover all of it."""

    def altered(original: Callable, *args: Any, **options: Any) -> Array:
        given = bound(original, *args, **options)
        penalised_bv = _fewer(part)(original, **given | {"no_repeat_ngram": 0})
        return original(**given | {"scores_bv": penalised_bv, "repetition_penalty": 1.0})

    return altered


def _one_ending(index: int) -> Callable:
    return on_result(lambda ids: ids[index:][:1])


def cut(kept: Callable[..., Array]) -> Callable:
    """Changes which logits top-p keeps: (sorted logits after top-k, top-p) -> mask."""

    def altered(original: Callable, logits_bv: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Array:
        x_bv = original(logits_bv, temperature, top_k)
        if top_p == 1:
            return x_bv
        order_bv = np.argsort(-x_bv, axis=1, kind="stable")
        kept_bv = kept(np.take_along_axis(x_bv, order_bv, axis=1), top_p).copy()
        np.put_along_axis(kept_bv, order_bv, kept_bv.copy(), axis=1)
        return np.where(kept_bv, x_bv, x_bv.dtype.type(-np.inf))

    return altered


def _and_one_more(x_bv: Array, top_p: float) -> Array:
    sum_bv = np.cumsum(softmax.softmax(x_bv), axis=1)
    kept_bv = np.concatenate([np.ones_like(sum_bv[:, :2], bool), sum_bv[:, :-2] < top_p], axis=1)
    return kept_bv[:, : x_bv.shape[1]]


def _top_p_first(original: Callable, logits_bv: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Array:
    return original(original(logits_bv, temperature, 0, top_p), 1.0, top_k)


def _with_ties(original: Callable, logits_bv: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Array:
    x_bv = original(logits_bv, temperature)
    if top_k:
        least_b1 = np.sort(x_bv, axis=1)[:, ::-1][:, min(top_k, x_bv.shape[1]) - 1 :][:, :1]
        x_bv = np.where(x_bv >= least_b1, x_bv, x_bv.dtype.type(-np.inf))
    return original(x_bv, 1.0, 0, top_p)


def _higher_first(original: Callable, logits_bv: Array, *options: Any, **named: Any) -> Array:
    return original(logits_bv[:, ::-1], *options, **named)[:, ::-1]


def _truncations() -> Iterator[Alteration]:
    fix = "divide by the temperature, then apply top-k, then top-p"

    def finite(value: float) -> Callable:
        return on_result(lambda x_bv: np.where(np.isneginf(x_bv), x_bv.dtype.type(value), x_bv))

    rows: dict[str, tuple[str, Callable]] = {
        "multiplied": ("the logits are multiplied by the temperature", on_arguments(temperature=lambda t: 1 / t)),
        "temperature ignored": ("the temperature is ignored", on_arguments(temperature=1.0)),
        "temperature squared": ("the logits are divided by the temperature twice", on_arguments(temperature=lambda t: t * t)),
        "k + 1": ("top_k keeps one token too many", on_arguments(top_k=lambda k: k + 1 if k else 0)),
        "k - 1": ("top_k keeps one token too few", on_arguments(top_k=lambda k: max(k - 1, 1) if k else 0)),
        "top_k ignored": ("top_k is ignored", on_arguments(top_k=0)),
        "top_p ignored": ("top_p is ignored", on_arguments(top_p=1.0)),
        "1 - p": ("top_p is used as 1 - top_p", on_arguments(top_p=lambda p: 1 - p if p < 1 else 1.0)),
        "top_p first": ("top_p is applied before top_k", _top_p_first),
        "ties": ("all tokens tied with the last of the top_k are kept", _with_ties),
        "higher first": ("ties between equal logits go to the higher id", _higher_first),
        "one more": ("top_p keeps one token too many", cut(_and_one_more)),
        "all that cross": ("top_p may drop even the most likely token", cut(
            lambda x_bv, top_p: np.cumsum(softmax.softmax(x_bv), axis=1) < top_p)),
        "min_p": ("top_p is used as min-p: relative to the largest probability", cut(
            lambda x_bv, top_p: np.exp(x_bv - x_bv[:, :1]) >= top_p)),
        "each above p": ("top_p is compared with each token's probability instead of their sum", cut(
            lambda x_bv, top_p: (softmax.softmax(x_bv) < top_p) | (np.arange(x_bv.shape[1]) == 0))),
        "zero": ("truncated logits become 0 instead of -inf", finite(0)),
        "-1e4": ("truncated logits become -1e4 instead of -inf", finite(-1e4)),
        "-1e9": ("truncated logits become -1e9 instead of -inf", finite(-1e9)),
        "finfo.min": ("truncated logits become finfo.min instead of -inf",
                      on_result(lambda x_bv: np.maximum(x_bv, np.finfo(x_bv.dtype).min))),
    }  # fmt: skip
    yield from settings("truncate=", "truncate", fix, rows)


def _drawn(choose: Callable[[Array, Array], Array]) -> Callable:
    """Draws tokens by a function of the probabilities `b v` and the uniform numbers `b 1`."""
    return lambda original, logits_bv, uniform_b: choose(softmax.softmax(logits_bv), uniform_b[:, None]).astype(np.int64)


def _inverse(p_bv: Array, uniform_b1: Array) -> Array:
    return np.minimum((np.cumsum(p_bv, axis=1) <= uniform_b1).sum(axis=1), p_bv.shape[1] - 1)


def _likeliest_first(p_bv: Array, uniform_b1: Array) -> Array:
    order_bv = np.argsort(-p_bv, axis=1, kind="stable")
    place_b = _inverse(np.take_along_axis(p_bv, order_bv, axis=1), uniform_b1)
    return np.take_along_axis(order_bv, place_b[:, None], axis=1)[:, 0]


def _draws() -> Iterator[Alteration]:
    fix = "draw the lowest id whose p_0 + ... + p_id exceeds the uniform number"

    def within(p_bv: Array, id_b: Array) -> Array:
        return np.clip(id_b, 0, p_bv.shape[1] - 1)

    rows: dict[str, tuple[str, Callable]] = {
        "at least": ("sampling compares the cumulative probability with >= instead of >", _drawn(
            lambda p_bv, u_b1: within(p_bv, (np.cumsum(p_bv, axis=1) < u_b1).sum(axis=1)))),
        "likeliest first": ("sampling sums the probabilities from the most likely token down", _drawn(_likeliest_first)),
        "from the end": ("sampling sums the probabilities from the highest id down", _drawn(
            lambda p_bv, u_b1: p_bv.shape[1] - 1 - _inverse(p_bv[:, ::-1], u_b1))),
        "one too high": ("sampling returns the next higher id", _drawn(lambda p_bv, u_b1: within(p_bv, _inverse(p_bv, u_b1) + 1))),
        "one too low": ("sampling returns the next lower id", _drawn(lambda p_bv, u_b1: within(p_bv, _inverse(p_bv, u_b1) - 1))),
        "likeliest": ("the most likely token is chosen instead of sampling", _drawn(lambda p_bv, u_b1: p_bv.argmax(axis=1))),
        "first number": ("all rows are drawn with the first row's random number",
                         on_arguments(uniform_b=lambda u_b: np.repeat(u_b[:1], len(u_b)))),
        "unnormalised": ("sampling uses exponentials that are not divided by their sum",
                         lambda original, logits_bv, uniform_b: _inverse(
            np.exp(logits_bv - logits_bv.max(axis=1, keepdims=True)), uniform_b[:, None])),
    }  # fmt: skip
    yield from settings("draw=", "draw", fix, rows)
