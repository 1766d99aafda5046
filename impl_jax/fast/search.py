"""The programs of the searches: one each for every structure of a model, plan, and bucket of lengths."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import sampling
from ..cache import decode_step, start_cache
from ..mask import token_mask
from ..positional_encoding import token_positions
from ..precision import upcast_dtype, upcast_half
from ..transformer import Transformer
from . import beams
from .cache import Cache, forward_step, next_tokens
from .request import Plan, Request

__all__ = ["beam_search", "one_by_one"]


class Answer(NamedTuple):
    """The answers of all rows, step by step."""

    step: jax.Array
    token_b: jax.Array
    token_bn: jax.Array
    log_p_bn: jax.Array
    done_b: jax.Array


@functools.partial(jax.jit, static_argnames=("structure", "plan"))
def one_by_one(
    structure: Any, leaves: list[Any], plan: Plan, request: Request
) -> dict[str, jax.Array]:
    """Greedy search; with uniform numbers, sampling."""
    model = jax.tree.unflatten(structure, leaves)

    def step(state: tuple[Answer, Cache, jax.Array]) -> tuple[Answer, Cache, jax.Array]:
        answer, cache, valid = state
        logits_b1v, cache = decode_step(model, answer.token_b[:, None], cache)
        logits_bv, log_p_bv, valid = _checked(request, logits_b1v[:, 0], valid)
        scores_bv = _penalised(plan, model, request, answer.token_bn, answer.step, logits_bv)
        token_b = _chosen(plan, request, scores_bv, answer.step)
        # Where no token may follow, the answer ends.
        token_b = jnp.where(_at(scores_bv, token_b) == -jnp.inf, request.end_id, token_b)
        log_p_b = jnp.where(answer.done_b, 0, _at(log_p_bv, token_b))
        token_b = jnp.where(answer.done_b, request.pad_id, token_b)
        token_bn, log_p_bn = (
            jax.lax.dynamic_update_index_in_dim(old, new, answer.step, axis=1)
            for old, new in ((answer.token_bn, token_b), (answer.log_p_bn, log_p_b))
        )
        return (
            Answer(
                answer.step + 1,
                token_b,
                token_bn,
                log_p_bn,
                answer.done_b | (token_b == request.end_id),
            ),
            cache,
            valid,
        )

    cache, dtype = _after_prefix(model, request, plan.room)
    token_bn = jnp.full((len(request.prefix_bp), plan.room), request.pad_id, int)
    initial = Answer(
        jnp.zeros((), int),
        request.prefix_bp[:, -1],
        token_bn,
        jnp.zeros(token_bn.shape, dtype),
        jnp.zeros(len(token_bn), bool),
    )
    answer, _, valid = jax.lax.while_loop(
        lambda state: (state[0].step < request.max_new_tokens) & ~state[0].done_b.all(),
        step,
        (initial, cache, jnp.ones((), bool)),
    )
    return {"token_bn": answer.token_bn, "log_p_bn": answer.log_p_bn, "valid": valid}


@functools.partial(jax.jit, static_argnames=("structure", "plan"))
def beam_search(
    structure: Any, leaves: list[Any], plan: Plan, request: Request
) -> dict[str, jax.Array]:
    """The beam_size best hypotheses of each row."""
    model = jax.tree.unflatten(structure, leaves)
    batch, size, room = len(request.prefix_bp), plan.beams, plan.room
    rows = request._replace(
        **{
            name: jnp.repeat(getattr(request, name), size, axis=0)
            for name in ("prefix_bp", "prefix_mask_bp")
        }
    )
    prefix_mask_bwp = jnp.repeat(request.prefix_mask_bp[:, None, :-1], size, axis=1)
    last_bw = token_positions(request.prefix_mask_bp, model.config.position_start)[:, -1:]

    def step(state: tuple[beams.Beams, Cache, jax.Array]) -> tuple[beams.Beams, Cache, jax.Array]:
        found, cache, valid = state
        own_bwnw = (found.place_bwn[..., None] == jnp.arange(size)) & (
            jnp.arange(room) <= found.length
        )[:, None]
        mask_bwt = jnp.concatenate(
            [prefix_mask_bwp, own_bwnw.reshape(batch, size, room * size)], axis=2
        )
        position_bw = jnp.broadcast_to(last_bw + found.length, (batch, size))
        x_bwd, cache = forward_step(model, found.token_bw, cache, position_bw, mask_bwt[:, None])
        _, log_p_bwv, valid = _checked(request, model.head(x_bwd), valid)
        token_bn, log_p_bv = (jax.lax.collapse(x, 0, 2) for x in (found.live_bwn, log_p_bwv))
        scores_bv = _penalised(plan, model, rows, token_bn, found.length, log_p_bv)
        return beams.advance(found, scores_bv.reshape(log_p_bwv.shape), request), cache, valid

    cache, dtype = _after_prefix(model, request, room * size)
    initial = beams.start(rows.prefix_bp[:, -1].reshape(batch, size), room, request.pad_id, dtype)
    found, _, valid = jax.lax.while_loop(
        lambda state: (state[0].length < request.max_new_tokens) & ~state[0].done_b.all(),
        step,
        (initial, cache, jnp.ones((), bool)),
    )
    return {"token_bwn": found.kept_bwn, "score_bw": found.kept_bw, "valid": valid}


def _after_prefix(model: Transformer, request: Request, room: int) -> tuple[Cache, jnp.dtype]:
    """The cache after all of the prefix but its last token, with room for so many more, and the dtype of scores."""
    memory_bsd = (
        None if request.source is None else model.encode(request.source, request.source_mask_bs)
    )
    batch, before = len(request.prefix_bp), request.prefix_bp.shape[1] - 1
    cache = start_cache(model, memory_bsd, request.source_mask_bs, batch, length=before + room)
    if before:
        _, cache = forward_step(
            model,
            request.prefix_bp[:, :-1],
            *next_tokens(model.config, cache, request.prefix_mask_bp[:, :-1]),
        )
    return cache, upcast_dtype(cache["layers"][0]["self_attention"][0].dtype)


def _checked(
    request: Request, logits: jax.Array, valid: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The logits in the dtype of scores, -inf for forbidden ids; their log p; and whether all were less than inf so far.

    NaN and inf stay, also of forbidden ids, and show in the sum.
    """
    logits = upcast_half(logits)
    logits = jnp.where(request.forbidden_v & (logits < jnp.inf), -jnp.inf, logits)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    x = logits - largest
    log_total = jnp.log(jnp.sum(jnp.exp(x), axis=-1, keepdims=True))
    return logits, x - log_total, valid & ~(jnp.isnan(log_total) & (largest != -jnp.inf)).any()


def _penalised(
    plan: Plan,
    model: Transformer,
    request: Request,
    token_bn: jax.Array,
    count: jax.Array,
    scores_bv: jax.Array,
) -> jax.Array:
    """The scores by which the next token is chosen, after so many tokens of the answer."""
    if plan.repetition or plan.no_repeat_ngram:
        mask_bn = token_mask(token_bn, model.config.padding_id) & (
            jnp.arange(token_bn.shape[1]) < count
        )
        # The free places go to the left, where they are padding, so that the target ends where the array ends.
        target_bt, mask_bt = (
            jnp.roll(jnp.concatenate(pair, axis=1), token_bn.shape[1] - count, axis=1)
            for pair in ((request.prefix_bp, token_bn), (request.prefix_mask_bp, mask_bn))
        )
        scores_bv = sampling.penalise(
            scores_bv, target_bt, request.repetition_penalty, plan.no_repeat_ngram, mask_bt
        )
    too_early_v = (jnp.arange(scores_bv.shape[1]) == request.end_id) & (
        count < request.min_new_tokens
    )
    return jnp.where(too_early_v, -jnp.inf, scores_bv)


def _chosen(plan: Plan, request: Request, scores_bv: jax.Array, step: jax.Array) -> jax.Array:
    if request.uniform_bn is None:
        return scores_bv.argmax(axis=1)
    stuck_b1 = (
        scores_bv.max(axis=1, keepdims=True) == -jnp.inf
    )  # what is drawn there is replaced by the end
    scores_bv = jnp.where(stuck_b1, 0, scores_bv)
    kept_bv = sampling.truncate(
        scores_bv, request.temperature, plan.top_k, request.top_p if plan.by_probability else 1
    )
    return sampling.draw(kept_bv, request.uniform_bn[:, step])


def _at(x_bv: jax.Array, id_b: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_bv, id_b[:, None], axis=1)[:, 0]
