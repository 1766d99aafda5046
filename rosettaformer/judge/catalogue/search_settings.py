"""Settings of the searches: options, penalties, random numbers, results and end tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference_numpy import arithmetic
from reference_numpy.strategy import Strategy

from ..expectation.components import SEARCHES
from .alteration import Alteration, Array, bound, called, on_arguments, setting, settings

ONE_BY_ONE = ("decoding.greedy_search", "decoding.sample")


def _behind(token_bn: Array, end_id: int) -> Array:
    """Mask of the places after the end token."""
    return (np.cumsum(token_bn == end_id, axis=1) > 0) & (token_bn != end_id)


def _answered(change: Callable[[Array, Array, int], tuple[Array, Array]]) -> Callable:
    """Returns other tokens and log p: a function of both and the end token."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        result, end_id = original(*args, **options), bound(original, *args, **options)["strategy"]["end_id"]
        token_bn, log_p_bn = change(result["token_bn"], result["log_p_bn"], end_id)
        return {"token_bn": token_bn, "log_p_bn": log_p_bn.astype(result["log_p_bn"].dtype)}

    return altered


def _padded_end(keep: bool) -> Callable:
    """Replaces the end token by padding and its log p by 0. keep: keeps that log p."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        result, given = original(*args, **options), bound(original, *args, **options)
        strategy = Strategy.of(given["strategy"], given["config"])
        ends = result["token_bn"] == strategy.end_id
        log_p_bn = np.where(ends & (not keep), result["log_p_bn"].dtype.type(0), result["log_p_bn"])
        return {"token_bn": np.where(ends, strategy.pad_id(given["config"]), result["token_bn"]), "log_p_bn": log_p_bn}

    return altered


def looped(ends: Callable[[Array], Array] = np.array, log_p: Callable[[Any], Array] = lambda model: model.log_p) -> Callable:
    """Runs the loop of a search without beams with other rules for finished rows and log p."""

    def altered(original: Callable, model: Any, choose: Callable) -> dict[str, Array]:
        done_b = np.zeros(len(model.logits_bv), bool)
        pad_id, end_id, most = model.strategy.pad_id(model.config), model.strategy.end_id, model.strategy.max_new_tokens
        tokens, scores = [], []
        for step in range(most):
            scores_bv = model.penalised(model.logits_bv)
            scores_bv[np.isneginf(scores_bv).all(axis=1), end_id] = 0
            token_b = np.where(done_b, pad_id, choose(scores_bv, step))
            own_b = np.take_along_axis(log_p(model), token_b[:, None], axis=1)[:, 0]
            tokens.append(token_b)
            scores.append(np.where(done_b, own_b.dtype.type(0), own_b))
            done_b = ends(done_b | (token_b == end_id))
            if step + 1 < most:
                model.read(token_b[:, None])
        return {"token_bn": np.stack(tokens, axis=1), "log_p_bn": np.stack(scores, axis=1)}

    return altered


def answers() -> Iterator[Alteration]:
    """Yields the settings of the results and the end of a search without beams."""
    fix = "return log p of each token given the earlier ones; padding and 0 after the end"
    rows: dict[str, tuple[str, Callable[[Array, Array, int], tuple[Array, Array]]]] = {
        "summed": ("log p is cumulative over the tokens", lambda token, log_p, end: (token, np.cumsum(log_p, axis=1))),
        "one later": ("log p is that of the previous token",
                      lambda token, log_p, end: (token, np.concatenate([0 * log_p[:, :1], log_p[:, :-1]], 1))),
        "one earlier": ("log p is that of the next token",
                        lambda token, log_p, end: (token, np.concatenate([log_p[:, 1:], 0 * log_p[:, :1]], 1))),
        "probabilities": ("probabilities are returned instead of log p", lambda token, log_p, end: (
            token, np.where(_behind(token, end), 0, np.exp(log_p)))),
        "probabilities, 1 after the end": ("exp(log p) is returned, 1 after the end", lambda token, log_p, end: (token, np.exp(log_p))),
        "negative": ("-log p is returned", lambda token, log_p, end: (token, -log_p)),
        "base 2": ("log p has base 2", lambda token, log_p, end: (token, log_p / np.log(2))),
        "0 at the end": ("log p of the end token is 0", lambda token, log_p, end: (token, np.where(token == end, 0, log_p))),
        "without the end": ("the end token is replaced by id 0", lambda token, log_p, end: (
            np.where(token == end, 0, token), np.where(token == end, 0, log_p))),
        "0 behind": ("tokens after the end are id 0", lambda token, log_p, end: (
            np.where(_behind(token, end), 0, token), log_p)),
        "end behind": ("tokens after the end are the end token", lambda token, log_p, end: (
            np.where(_behind(token, end), end, token), log_p)),
        "-1 behind": ("tokens after the end are -1", lambda token, log_p, end: (
            np.where(_behind(token, end), -1, token), log_p)),
    }  # fmt: skip
    yield from settings("answer=", "greedy_search", fix, rows, *ONE_BY_ONE, of=_answered)
    title, own = "the end token is replaced by padding", "return the end token with its own log p, then padding"
    yield setting("answer=padded end", "greedy_search", f"{title}, and its log p by 0", own, _padded_end(False), *ONE_BY_ONE)
    yield setting("answer=padded end, log p kept", "greedy_search", f"{title}; its log p is kept", own, _padded_end(True), *ONE_BY_ONE)
    fix, loops = (
        "end every row at its own end token",
        {
            "never": ("a row continues after its end token", np.zeros_like),
            "together": ("all rows end when the first one ends", lambda done_b: np.full_like(done_b, done_b.any())),
        },
    )
    yield from settings("end=", "greedy_search", fix, loops, "decoding.one_by_one", of=looped)


PLACES = tuple(f"decoding.{search}" for search in SEARCHES)


def _option(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable:
    """Changes the options of a search by a function of the passed options."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        given = bound(original, *args, **options)
        given["strategy"] = dict(given["strategy"]) | change(dict(given["strategy"]))
        return called(original, **given)

    return altered


def _of(name: str, change: Callable[[Any], Any], default: Any) -> Callable:
    """Changes one option by a function of it."""
    return _option(lambda given: {name: change(given.get(name, default))})


def _options() -> Iterator[Alteration]:
    rows: dict[str, tuple[str, Callable]] = {
        "min_new_tokens + 1": ("min_new_tokens is too large by 1", _of("min_new_tokens", lambda n: n + 1 if n else 0, 0)),
        "min_new_tokens - 1": ("min_new_tokens is too small by 1", _of("min_new_tokens", lambda n: max(n - 1, 0), 0)),
        "min_new_tokens ignored": ("min_new_tokens is ignored", _of("min_new_tokens", lambda n: 0, 0)),
        "repetition_penalty ignored": ("repetition_penalty is ignored", _of("repetition_penalty", lambda x: 1.0, 1.0)),
        "no_repeat_ngram ignored": ("no_repeat_ngram is ignored", _of("no_repeat_ngram", lambda n: 0, 0)),
        "alpha ignored": ("alpha is ignored: log p is not divided", _of("alpha", lambda alpha: 0.0, 0.6)),
        "alpha = 1": ("alpha is 1", _of("alpha", lambda alpha: 1.0, 0.6)),
        "alpha = 0.6": ("alpha is 0.6", _of("alpha", lambda alpha: 0.6, 0.6)),
        "early_stop": ("early_stop is on: a row stops once beam_size beams are finished", _of("early_stop", lambda stop: True, False)),
        "early_stop ignored": ("early_stop is ignored", _of("early_stop", lambda stop: False, False)),
        "one beam": ("beam search uses one beam", _option(lambda given: {"beam_size": 1, "n_best": 1})),
        "beam_size = n_best": ("beam search uses n_best beams", _option(lambda given: {"beam_size": given.get("n_best", 1)})),
        "beam_size + 1": ("beam search uses one beam too many", _of("beam_size", lambda n: n + 1, 1)),
        "beam_size - 1": ("beam search uses one beam too few", _of("beam_size", lambda n: max(n - 1, 1), 1)),
        "2 beam_size": ("beam search uses twice as many beams", _of("beam_size", lambda n: 2 * n, 1)),
    }  # fmt: skip
    for name, (title, altered) in rows.items():
        beams = name.startswith(("alpha", "early", "beam", "one", "2"))
        yield setting(name, "beam_search" if beams else "greedy_search", title, "use the option as passed", altered, *PLACES)


def _penalised(choose: Callable[[Any], dict[str, Any]]) -> Callable:
    """Computes the penalties with other attributes of the model."""

    def altered(original: Callable, self: Any, scores_bv: Array) -> Array:
        own = dict(vars(self))
        vars(self).update(choose(self))
        result_bv = original(self, scores_bv)
        vars(self).update(own)
        return result_bv

    return altered


def _part(part: Callable[[Array, int], Array]) -> Callable[[Any], dict[str, Any]]:
    """Selects a part of target and mask by a function of the array and the prefix length."""

    def choose(self: Any) -> dict[str, Any]:
        target_bt, mask_bt = (part(array, self._prefix_length) for array in (self.target_bt, self.target_mask_bt))
        return {
            "target_bt": target_bt,
            "target_mask_bt": mask_bt,
            "_prefix_length": self._prefix_length - self.target_bt.shape[1] + target_bt.shape[1],
        }

    return choose


def _normalised(x_bv: Array) -> Array:
    x_bv = x_bv - np.max(x_bv, axis=1, keepdims=True)
    return x_bv - np.log(arithmetic.sum(arithmetic.exp(x_bv), axis=1))


def _log_p_penalised(original: Callable, self: Any, scores_bv: Array) -> Array:
    """Penalizes log p instead of the logits in a search without beams."""
    return original(self, self.log_p if scores_bv is self.logits_bv else scores_bv)


def _logits_penalised(original: Callable, self: Any, scores_bv: Array) -> Array:
    """Penalizes the logits instead of log p in beam search."""
    return original(self, scores_bv) if scores_bv is self.logits_bv else _normalised(original(self, self.logits_bv))


def _over_all_tokens(original: Callable, self: Any, parameters: Any, config: Any, strategy: Any, *rest: Any) -> None:
    """Computes log p over all tokens and excludes forbidden tokens only when choosing one."""

    class Lax(type(strategy)):  # type: ignore[misc]
        def forbidden_ids(self, config: Any) -> list[int]:
            return []

    original(self, parameters, config, Lax(**vars(strategy)), *rest)
    penalised, forbidden = self.penalised, strategy.forbidden_ids(config)

    def barred(scores_bv: Array) -> Array:
        result_bv = penalised(scores_bv)
        result_bv[:, forbidden] = -np.inf
        return result_bv

    self.penalised = barred


def _models() -> Iterator[Alteration]:
    fix = "penalize every token of the target (prefix and new tokens) in the logits, or in log p for beam search"
    rows: dict[str, tuple[str, Callable]] = {
        "answer": ("the penalties ignore the prefix", _penalised(_part(lambda target, length: target[:, length:]))),
        "prefix": ("the penalties cover only the prefix", _penalised(_part(lambda target, length: target[:, :length]))),
        "without the last": ("the penalties ignore the last token", _penalised(_part(lambda target, length: target[:, :-1]))),
        "prefix counted": ("the prefix counts toward min_new_tokens", _penalised(lambda self: {"_prefix_length": 0})),
        "log p": ("log p is penalized instead of the logits", _log_p_penalised),
        "logits": ("beam search penalizes the logits instead of log p", _logits_penalised),
    }  # fmt: skip
    for name, (title, altered) in rows.items():
        component = "beam_search" if name == "logits" else "greedy_search"
        yield setting(f"penalties of={name}", component, title, fix, altered, "decoding.Model.penalised")
    title, fix = "log p is computed over all tokens, including padding and start", "compute log p over the tokens that may be generated"
    yield setting("log p=of all tokens", "greedy_search", title, fix, _over_all_tokens, "decoding.Model.__init__")
    title, fix = "log p is computed after the penalties", "compute log p before any penalty"
    altered = looped(log_p=lambda model: _normalised(model.penalised(model.logits_bv)))
    yield setting("log p=after penalties", "greedy_search", title, fix, altered, "decoding.one_by_one")


def _numbers() -> Iterator[Alteration]:
    fix = "draw token n of row b with uniform_bn[b, n]"
    rows: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "one on": ("each token is drawn with the next token's random number", lambda u_bn: np.roll(u_bn, -1, axis=1)),
        "one back": ("each token is drawn with the previous token's random number", lambda u_bn: np.roll(u_bn, 1, axis=1)),
        "first": ("all tokens of a row are drawn with its first random number", lambda u_bn: np.repeat(u_bn[:, :1], u_bn.shape[1], axis=1)),
        "first row": ("all rows are drawn with the first row's random numbers", lambda u_bn: np.repeat(u_bn[:1], len(u_bn), axis=0)),
        "by step": ("the random numbers are read step by step instead of row by row", lambda u_bn: u_bn.reshape(u_bn.shape[::-1]).T),
        "from the end": ("the random numbers are read in reverse", lambda u_bn: u_bn[:, ::-1]),
        "1 - u": ("tokens are drawn with 1 - u instead of u", lambda u_bn: 1 - u_bn),
        "rows reversed": ("the random numbers of the rows are in reverse order", lambda u_bn: u_bn[::-1]),
    }  # fmt: skip
    of = lambda change: on_arguments(uniform_bn=change)  # noqa: E731
    yield from settings("numbers=", "sample", fix, rows, PLACES[1], of=of)


def searches() -> Iterator[Alteration]:
    """Yields the settings of the searches except those of beams."""
    yield from _options()
    yield from _models()
    yield from answers()
    yield from _numbers()
