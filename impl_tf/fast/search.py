"""The searches, each a loop that is one graph."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from .. import mask, sampling
from ..cache import reorder, start_cache
from ..precision import upcast_half
from ..transformer import Transformer
from . import beams
from .cache import branch, forward_step
from .request import Plan, Request

__all__ = ["beam_search", "one_by_one"]

State: TypeAlias = "dict[str, Any]"


def one_by_one(model: Transformer, plan: Plan, request: Request) -> dict[str, tf.Tensor]:
    """One answer a row, token by token: greedy search; with uniform numbers, sampling. fit: whether every logit was less than inf."""

    def body(state: State) -> tuple[State]:
        logits_bv, state = _next_logits(model, request, state)
        token_b = _choose(plan, request, state["step"], _penalised(plan, request, state, logits_bv))
        token_b = tf.where(state["done_b"], request.pad_id, token_b)
        log_p_b = tf.where(
            state["done_b"], tf.zeros((), logits_bv.dtype), _log_p(logits_bv, token_b)
        )
        here_n = tf.range(plan.room) == state["step"]
        return ({
            **state,
            "step": state["step"] + 1,
            "token_b1": token_b[:, tf.newaxis],
            "token_bn": tf.where(here_n, token_b[:, tf.newaxis], state["token_bn"]),
            "log_p_bn": tf.where(here_n, log_p_b[:, tf.newaxis], state["log_p_bn"]),
            "done_b": state["done_b"] | (token_b == request.end_id),
        },)  # fmt: skip

    state = _start(model, plan, request)
    shape = [request.last_b1.shape[0], plan.room]
    state |= {
        "token_bn": tf.fill(shape, request.pad_id),
        "log_p_bn": tf.zeros(shape, _score_dtype(model)),
    }
    (state,) = tf.while_loop(_goes_on(request), body, (state,))
    return {
        "token_bn": tf.cast(state["token_bn"], tf.int64),
        "log_p_bn": state["log_p_bn"],
        "fit": state["fit"],
    }


def beam_search(model: Transformer, plan: Plan, request: Request) -> dict[str, tf.Tensor]:
    """The beams of all rows, token by token: the beam_size best hypotheses of each row. fit: whether every logit was less than inf."""
    batch, size, end_id, dtype = (
        request.last_b1.shape[0],
        plan.beams,
        request.end_id,
        _score_dtype(model),
    )
    penalty_n = tf.cast(request.length_penalty_n, dtype)
    longest = tf.gather(penalty_n, request.max_new_tokens - 1)
    first_b1 = tf.range(batch)[:, tf.newaxis] * size

    def body(state: State) -> tuple[State]:
        logits_bv, state = _next_logits(model, request, state)
        step, live, kept, done_b = (state[name] for name in ("step", "live", "kept", "done_b"))
        scores_bv = _penalised(plan, request, state, _log_p(logits_bv))
        sum_bwv = (
            tf.reshape(scores_bv, [batch, size, scores_bv.shape[1]])
            + live.score_bw[..., tf.newaxis]
        )
        ended_bw = tf.gather(sum_bwv, end_id, axis=2) / tf.gather(penalty_n, step)
        kept = beams.choose(done_b, kept, beams.keep(kept, live, ended_bw, end_id, step))
        sum_bwv = tf.where(
            tf.range(sum_bwv.shape[2]) == end_id, tf.constant(float("-inf"), dtype), sum_bwv
        )
        live, token_bw, parent_bw = beams.best(live, sum_bwv, step)
        done_b |= (live.score_bw[:, 0] == float("-inf")) | beams.stops(
            live, kept, longest, request.early_stop
        )
        state |= {
            "step": step + 1,
            "live": live,
            "kept": kept,
            "done_b": done_b,
            "token_b1": tf.reshape(token_bw, [-1, 1]),
        }
        row_b = tf.reshape(first_b1 + parent_bw, [-1])  # which row of the target each row was
        state["cache"] = reorder(state["cache"], row_b)
        return (
            state
            | {
                name: tf.gather(state[name], row_b)
                for name in ("seen_bn", "seen_mask_bn")
                if name in state
            },
        )

    state = _start(model, plan, request)
    state["cache"] = branch(state["cache"], size)
    state |= {
        name: tf.repeat(state[name], size, axis=0)
        for name in ("token_b1", "seen_bn", "seen_mask_bn")
        if name in state
    }
    state["live"], state["kept"] = beams.start(batch, size, plan.room, request.pad_id, dtype)
    (state,) = tf.while_loop(_goes_on(request), body, (state,))
    kept = state["kept"]
    return {
        "token_bwn": tf.cast(kept.token_bwn, tf.int64),
        "score_bw": kept.score_bw,
        "fit": state["fit"],
    }


def _score_dtype(model: Transformer) -> tf.DType:
    return upcast_half(tf.zeros((), model.compute_dtype)).dtype


def _start(model: Transformer, plan: Plan, request: Request) -> State:
    """The state of a loop before its first token: all of the prefix but its last token has been read."""
    memory_bsd = (
        None if request.source is None else model.encode(request.source, request.source_mask_bs)
    )
    batch, before = request.before.shape
    cache = start_cache(model, memory_bsd, request.source_mask_bs, batch, length=before + plan.room)
    cache = {**cache, "start": request.start}
    if before:
        _, cache = forward_step(model, request.before, cache, request.before_mask_bt)
    state = {
        "step": tf.constant(0),
        "fit": tf.constant(True),
        "done_b": tf.zeros([batch], tf.bool),
        "cache": cache,
    }
    if plan.repetition or plan.no_repeat_ngram:
        # The end of the target stands at the end, so that it does not matter how much of it there is.
        wider = [[0, 0], [plan.room, 0]]
        state |= {
            "seen_bn": tf.pad(request.before, wider),
            "seen_mask_bn": tf.pad(request.before_mask_bt, wider),
        }
    return state | {"token_b1": request.last_b1}


def _goes_on(request: Request) -> Callable[[State], tf.Tensor]:
    return lambda state: (
        (state["step"] < request.max_new_tokens) & state["fit"] & ~tf.reduce_all(state["done_b"])
    )


def _next_logits(model: Transformer, request: Request, state: State) -> tuple[tf.Tensor, State]:
    """The logits after the last token, over what an answer may hold, and the state with the token in cache and target."""
    token_b1 = state["token_b1"]
    mask_b1 = mask.token_mask(token_b1, model.config.padding_id)
    logits_btv, cache = forward_step(model, token_b1, state["cache"], mask_b1)
    logits_bv = upcast_half(logits_btv[:, 0])
    state = {**state, "cache": cache, "fit": tf.reduce_all(logits_bv < float("inf"))}
    if "seen_bn" in state:
        state["seen_bn"] = tf.concat([state["seen_bn"][:, 1:], token_b1], axis=1)
        state["seen_mask_bn"] = tf.concat([state["seen_mask_bn"][:, 1:], mask_b1], axis=1)
    return tf.where(
        request.forbidden_v, tf.constant(float("-inf"), logits_bv.dtype), logits_bv
    ), state


def _penalised(plan: Plan, request: Request, state: State, scores_bv: tf.Tensor) -> tf.Tensor:
    """The scores by which the next token is chosen."""
    if "seen_bn" in state:
        seen = (
            state["seen_bn"],
            request.repetition_penalty,
            plan.no_repeat_ngram,
            state["seen_mask_bn"],
        )
        scores_bv = sampling.penalise(scores_bv, *seen)
    too_early_v = (tf.range(scores_bv.shape[1]) == request.end_id) & (
        state["step"] < request.min_new_tokens
    )
    return tf.where(too_early_v, tf.constant(float("-inf"), scores_bv.dtype), scores_bv)


def _choose(plan: Plan, request: Request, step: tf.Tensor, scores_bv: tf.Tensor) -> tf.Tensor:
    """The next token of each row; where nothing may follow it is the end."""
    stuck_b = tf.reduce_max(scores_bv, axis=1) == float("-inf")
    if plan.drawn:
        scores_bv = tf.where(stuck_b[:, tf.newaxis], tf.zeros((), scores_bv.dtype), scores_bv)
        top_k, top_p = (
            request.top_k if plan.most else 0,
            request.top_p if plan.by_probability else 1,
        )
        kept_bv = sampling.truncate(scores_bv, request.temperature, top_k, top_p, plan.most)
        token_b = sampling.draw(kept_bv, request.uniform_bn[:, step])
    else:
        token_b = _likeliest(scores_bv)
    return tf.where(stuck_b, request.end_id, tf.cast(token_b, tf.int32))


def _likeliest(scores_bv: tf.Tensor) -> tf.Tensor:
    """Of equals the lower id, of which `tf.argmax` says nothing; and these two reductions take half its time."""
    ids, largest_b1 = tf.range(scores_bv.shape[1]), tf.reduce_max(scores_bv, axis=1, keepdims=True)
    return tf.reduce_min(tf.where(scores_bv == largest_b1, ids, scores_bv.shape[1] - 1), axis=1)


def _log_p(logits_bv: tf.Tensor, token_b: tf.Tensor | None = None) -> tf.Tensor:
    """log p of every token, or of one of each row."""
    x_bv = logits_bv - tf.reduce_max(logits_bv, axis=1, keepdims=True)
    log_sum_b1 = tf.math.log(tf.reduce_sum(tf.exp(x_bv), axis=1, keepdims=True))
    return (
        x_bv - log_sum_b1
        if token_b is None
        else tf.gather(x_bv, token_b, batch_dims=1) - log_sum_b1[:, 0]
    )
