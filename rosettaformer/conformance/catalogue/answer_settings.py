"""Settings of the answers of searches without beams: other numbers beside the tokens, other ends."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference_numpy.strategy import Strategy

from .alteration import Alteration, setting, settings
from .combinators import bound

Array = np.ndarray
ONE_BY_ONE = ("decoding.greedy_search", "decoding.sample")


def _behind(token_bn: Array, end_id: int) -> Array:
    """The places behind the end token."""
    return (np.cumsum(token_bn == end_id, axis=1) > 0) & (token_bn != end_id)


def _answered(change: Callable[[Array, Array, int], tuple[Array, Array]]) -> Callable:
    """Answers with other tokens and log p, by a function of both and the end token."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        result, end_id = original(*args, **options), bound(original, *args, **options)["strategy"]["end_id"]
        token_bn, log_p_bn = change(result["token_bn"], result["log_p_bn"], end_id)
        return {"token_bn": token_bn, "log_p_bn": log_p_bn.astype(result["log_p_bn"].dtype)}

    return altered


def _padded_end(keep: bool) -> Callable:
    """Answers with padding in place of the end token and 0 in place of its log p. keep: leaves that log p."""

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        result, given = original(*args, **options), bound(original, *args, **options)
        strategy = Strategy.of(given["strategy"], given["config"])
        ends = result["token_bn"] == strategy.end_id
        log_p_bn = np.where(ends & (not keep), result["log_p_bn"].dtype.type(0), result["log_p_bn"])
        return {"token_bn": np.where(ends, strategy.pad_id(given["config"]), result["token_bn"]), "log_p_bn": log_p_bn}

    return altered


def looped(ends: Callable[[Array], Array] = np.array, log_p: Callable[[Any], Array] = lambda model: model.log_p_bv) -> Callable:
    """Runs the loop of a search without beams with other rules for which rows are done and what log p is."""

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
    """The settings of the answers and the end of a search without beams."""
    fix = "log p of each token given all before it; padding and 0 after the end"
    rows: dict[str, tuple[str, Callable[[Array, Array, int], tuple[Array, Array]]]] = {
        "summed": ("log p is summed up over the tokens", lambda token, log_p, end: (token, np.cumsum(log_p, axis=1))),
        "one later": ("log p is that of the token before",
                      lambda token, log_p, end: (token, np.concatenate([0 * log_p[:, :1], log_p[:, :-1]], 1))),
        "one earlier": ("log p is that of the next token",
                        lambda token, log_p, end: (token, np.concatenate([log_p[:, 1:], 0 * log_p[:, :1]], 1))),
        "probabilities": ("the probabilities are given, not their logarithms", lambda token, log_p, end: (
            token, np.where(_behind(token, end), 0, np.exp(log_p)))),
        "probabilities, 1 after the end": ("exp(log p) is given", lambda token, log_p, end: (token, np.exp(log_p))),
        "negative": ("-log p is given", lambda token, log_p, end: (token, -log_p)),
        "base 2": ("log p is that of base 2", lambda token, log_p, end: (token, log_p / np.log(2))),
        "0 at the end": ("log p of the end token is 0", lambda token, log_p, end: (token, np.where(token == end, 0, log_p))),
        "without the end": ("the end token is cut off, and id 0 is in its place", lambda token, log_p, end: (
            np.where(token == end, 0, token), np.where(token == end, 0, log_p))),
        "0 behind": ("what is behind the end is id 0", lambda token, log_p, end: (
            np.where(_behind(token, end), 0, token), log_p)),
        "end behind": ("what is behind the end is the end token", lambda token, log_p, end: (
            np.where(_behind(token, end), end, token), log_p)),
        "-1 behind": ("what is behind the end is -1", lambda token, log_p, end: (
            np.where(_behind(token, end), -1, token), log_p)),
    }  # fmt: skip
    yield from settings("answer=", "greedy_search", fix, rows, *ONE_BY_ONE, of=_answered)
    title, own = "the end token is replaced by padding", "write the end token with its own log p, and padding from then on"
    yield setting("answer=padded end", "greedy_search", f"{title}, and its log p by 0", own, _padded_end(False), *ONE_BY_ONE)
    yield setting("answer=padded end, log p kept", "greedy_search", f"{title}; its log p is kept", own, _padded_end(True), *ONE_BY_ONE)
    fix, loops = (
        "end every row at its own end token",
        {
            "never": ("a row goes on after its end token", np.zeros_like),
            "together": ("all rows end with the first that ends", lambda done_b: np.full_like(done_b, done_b.any())),
        },
    )
    yield from settings("end=", "greedy_search", fix, loops, "decoding._one_by_one", of=looped)
