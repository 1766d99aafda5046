"""Text generation: greedy search, sampling and beam search with incremental decoding."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from . import sampling
from .beams import Beams
from .cache import length, positions
from .framework import Array
from .mask import token_mask
from .precision import upcast_dtype, upcast_half
from .programs.fused import fused
from .programs.reading import State, loop
from .programs.search import Answers, Options, Plan, Prompt, Request, Searches, program
from .programs.static_cache import StaticCache, forward_step, read, start_cache
from .transformer import Transformer
from .values import Text

__all__ = ["Searcher"]


class Searcher(Searches):
    """Searches over a copy of the model's current weights, made by `fused` with this dtype.

    A whole search is one XLA program: the encoder, the prefix, and a loop of steps that ends with
    the last answer. Models of the same structure share it. Sources, prefixes and answers are padded
    to a few lengths, and the strategy's numbers are arguments, except beam_size, no_repeat_ngram
    and top_k. Ids are checked before the program, logits after it. compiled=False: runs op by op.
    """

    def __init__(
        self, model: Transformer, dtype: Dtype | None = None, compiled: bool = True
    ) -> None:
        copy = (_fused if compiled else fused)(model, dtype)
        super().__init__(copy, (one_by_one, beams), compiled)

    def greedy_search(
        self,
        source: Array | None,
        strategy: Options,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """Generates the likeliest token at every step; ties go to the lower id.

        source: ids `b s`, prefix: ids `b p`, as in the reference. Masks: boolean, True = real
        token; default, every id but the padding id. Returns token_bn and log_p_bn, 0 after the end.
        Raises ValueError on invalid ids and options, on more tokens than positions, and if a logit
        is inf or NaN.
        """
        prompt = Prompt(source, prefix, source_mask_bs, prefix_mask_bp)
        return self.answers(one_by_one, strategy, prompt)

    def sample(
        self,
        source: Array | None,
        strategy: Options,
        uniform_bn: Array,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """Like `greedy_search`, but draws each token (SAMPLE).

        uniform_bn: numbers in [0, 1) that replace a key; all implementations draw the same.
        """
        prompt = Prompt(source, prefix, source_mask_bs, prefix_mask_bp)
        return self.answers(one_by_one, strategy, prompt, np.asarray(uniform_bn))

    def beam_search(
        self,
        source: Array | None,
        strategy: Options,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """Returns the n_best hypotheses of highest `log p / ((5 + n) / 6)^alpha` (BEAM).

        Returns token_bwn `b w n` and score_bw. Arguments and errors match `greedy_search`.
        """
        prompt = Prompt(source, prefix, source_mask_bs, prefix_mask_bp)
        return self.answers(beams, strategy, prompt, beams=True)


_fused = functools.partial(jax.jit, static_argnames="dtype")(fused)


class Answer(NamedTuple):
    """The answers of all rows so far. token_b: the token that each row reads next."""

    length: jax.Array
    token_b: jax.Array
    token_bn: jax.Array
    log_p_bn: jax.Array
    done_b: jax.Array


@program
def one_by_one(model: Transformer, plan: Plan, request: Request) -> dict[str, jax.Array]:
    """Greedy search, or sampling with uniform numbers: one answer per row, token by token."""

    def at(x_bv: jax.Array, id_b: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x_bv, id_b[:, None], axis=1)[:, 0]

    def step(state: State) -> State:
        answer, cache, valid = state
        token_b1 = answer.token_b[:, None]
        mask_b1 = token_mask(token_b1, model.config.padding_id)
        logits_b1v, cache = forward_step(model, token_b1, cache, mask_b1)
        logits_bv, log_p_bv, finite = log_p(request, logits_b1v[:, 0])
        target = request.prefix_bp, request.prefix_mask_bp, answer.token_bn
        scores_bv = penalised(model, plan, request, target, answer.length, logits_bv)
        token_b = choose(plan, request, scores_bv, answer.length)
        # If no token is allowed, the answer ends.
        token_b = jnp.where(at(scores_bv, token_b) == -jnp.inf, request.end_id, token_b)
        log_p_b = jnp.where(answer.done_b, 0, at(log_p_bv, token_b))
        token_b = jnp.where(answer.done_b, request.pad_id, token_b)
        token_bn, log_p_bn = (
            jax.lax.dynamic_update_index_in_dim(old, new, answer.length, axis=1)
            for old, new in ((answer.token_bn, token_b), (answer.log_p_bn, log_p_b))
        )
        done_b = answer.done_b | (token_b == request.end_id)
        answer = Answer(answer.length + 1, token_b, token_bn, log_p_bn, done_b)
        return answer, cache, valid & finite

    cache, dtype = start(model, request, plan.room)
    token_bn = jnp.full((len(request.prefix_bp), plan.room), request.pad_id, int)
    log_p_bn, done_b = jnp.zeros(token_bn.shape, dtype), jnp.zeros(len(token_bn), bool)
    first = Answer(jnp.zeros((), int), request.prefix_bp[:, -1], token_bn, log_p_bn, done_b)
    answer, _, valid = loop(model, request, step, (first, cache, jnp.ones((), bool)))
    return {"token_bn": answer.token_bn, "log_p_bn": answer.log_p_bn, "valid": valid}


@program
def beams(model: Transformer, plan: Plan, request: Request) -> dict[str, jax.Array]:
    """Beam search; a row's beams are queries of one shared cache, which is never reordered."""
    batch, size, room = len(request.prefix_bp), plan.beams, plan.room
    prefix_bp, prefix_mask_bp = (
        jnp.repeat(x, size, axis=0) for x in (request.prefix_bp, request.prefix_mask_bp)
    )

    def step(state: State) -> State:
        live, cache, valid = state
        position_bw, masks = continued(model, request, live)
        logits_bwv, cache = read(model, live.token_bw, cache, position_bw, masks)
        _, log_p_bwv, finite = log_p(request, logits_bwv)
        token_bn, log_p_bv = (jax.lax.collapse(x, 0, 2) for x in (live.live_bwn, log_p_bwv))
        target = prefix_bp, prefix_mask_bp, token_bn
        scores_bv = penalised(model, plan, request, target, live.length, log_p_bv)
        live = live.advance(
            scores_bv.reshape(log_p_bwv.shape), request.length_penalty_n,
            request.end_id, request.max_new_tokens, request.early_stop,
        )  # fmt: skip
        return live, cache, valid & finite

    cache, dtype = start(model, request, room * size, size)
    first = Beams.start(prefix_bp[:, -1].reshape(batch, size), room, request.pad_id, dtype)
    found, _, valid = loop(model, request, step, (first, cache, jnp.ones((), bool)))
    missing_bw1 = found.kept_bw[..., None] == -jnp.inf
    token_bwn = jnp.where(missing_bw1, request.pad_id, found.kept_bwn)
    return {"token_bwn": token_bwn, "score_bw": found.kept_bw, "valid": valid}


def start(
    model: Transformer, request: Request, room: int, copies: int = 1
) -> tuple[StaticCache, jnp.dtype]:
    """Returns the cache after all but the last token of the prefix, and the dtype of scores.

    room: for the tokens that follow. copies: of each row.
    """
    source_mask_bs, memory_bsd = request.source_mask_bs, None
    if request.source is not None:
        memory_bsd = model.encode(Text(request.source, source_mask_bs))
    batch, before = len(request.prefix_bp), request.prefix_bp.shape[1] - 1
    room += before
    cache = start_cache(model, memory_bsd, source_mask_bs, batch, length=room, copies=copies)
    if before:
        text = length(model.config, request.prefix_mask_bp)
        ids_bp, mask_bp = request.prefix_bp[:, :-1], request.prefix_mask_bp[:, :-1]
        _, cache = forward_step(model, ids_bp, cache, mask_bp, text)
    return cache, upcast_dtype(cache.layers[0]["self_attention"].key_bgsk.dtype)


def continued(
    model: Transformer, request: Request, beams: Beams
) -> tuple[jax.Array, dict[int, jax.Array]]:
    """Returns the positions and masks of beams that share a cache, as `read` takes them: each beam
    attends to the prefix and to the tokens that it has read.
    """
    (batch, size, room), before = beams.live_bwn.shape, request.prefix_bp.shape[1] - 1
    read_n1 = (jnp.arange(room) <= beams.length)[:, None]
    own_bwnw = (beams.place_bwn[..., None] == jnp.arange(size)) & read_n1
    prefix_bwp = jnp.repeat(request.prefix_mask_bp[:, None, :-1], size, axis=1)
    mask_bwt = jnp.concatenate([prefix_bwp, jax.lax.collapse(own_bwnw, 2)], axis=2)
    step_t = jnp.append(jnp.arange(before), before + jnp.repeat(jnp.arange(room), size))
    near_t = before + beams.length - step_t < model.config.window
    position_b1 = positions(model.config, request.prefix_mask_bp, 1) + beams.length
    position_bw = jnp.broadcast_to(position_b1, (batch, size))
    return position_bw, {model.config.window: (mask_bwt & near_t)[:, None], 0: mask_bwt[:, None]}


def log_p(request: Request, logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns logits in the dtype of scores, -inf for forbidden ids; log p; whether all are valid.

    NaN and inf, even of forbidden ids, are kept and reach the sum.
    """
    logits = upcast_half(logits)
    logits = jnp.where(request.forbidden_v & (logits < jnp.inf), -jnp.inf, logits)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    x = logits - largest
    log_total = jnp.log(jnp.sum(jnp.exp(x), axis=-1, keepdims=True))
    return logits, x - log_total, ~(jnp.isnan(log_total) & (largest != -jnp.inf)).any()


def penalised(
    model: Transformer,
    plan: Plan,
    request: Request,
    target: tuple[jax.Array, jax.Array, jax.Array],
    count: jax.Array,
    scores_bv: jax.Array,
) -> jax.Array:
    """Returns the scores that choose the next token, after `count` tokens of the answer.

    target: prefix, its token mask, and the answer.
    """
    prefix_bp, prefix_mask_bp, token_bn = target
    if plan.repetition or plan.no_repeat_ngram:
        free = token_bn.shape[1] - count
        mask_bn = token_mask(token_bn, model.config.padding_id)
        mask_bn &= jnp.arange(token_bn.shape[1]) < count
        # Move free places to the left, as padding, so that the target is right-aligned.
        target_bt, mask_bt = (
            jnp.roll(jnp.concatenate(pair, axis=1), free, axis=1)
            for pair in ((prefix_bp, token_bn), (prefix_mask_bp, mask_bn))
        )
        penalty, ngram = request.repetition_penalty, plan.no_repeat_ngram
        scores_bv = sampling.penalise(scores_bv, target_bt, penalty, ngram, mask_bt)
    is_end_v = jnp.arange(scores_bv.shape[1]) == request.end_id
    return jnp.where(is_end_v & (count < request.min_new_tokens), -jnp.inf, scores_bv)


def choose(plan: Plan, request: Request, scores_bv: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the likeliest token of each row, or the drawn one."""
    if request.uniform_bn is None:
        return scores_bv.argmax(axis=1)
    # If no token is possible, the caller replaces the drawn token by the end token.
    stuck_b1 = scores_bv.max(axis=1, keepdims=True) == -jnp.inf
    top_p = request.top_p if plan.by_probability else 1
    scores_bv = jnp.where(stuck_b1, 0, scores_bv)
    kept_bv = sampling.truncate(scores_bv, request.temperature, plan.top_k, top_p)
    return sampling.draw(kept_bv, request.uniform_bn[:, step])
