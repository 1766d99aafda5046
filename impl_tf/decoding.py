"""Text generation: greedy search, sampling and beam search with incremental decoding."""

import tensorflow as tf

from . import beams, mask, sampling
from .precision import upcast_half, wide
from .programs import static_cache
from .programs.search import Answers, Array, Options, Plan, Programs, Request, State, loop
from .transformer import Transformer
from .values import Text

__all__ = ["Searcher"]


class Searcher(Programs):
    """Searches over the model's current weights, in a copy with fused projections (`fused`).

    A search is one graph compiled by XLA. Sources, prefixes and answers are padded to a few
    lengths, so that a few graphs serve all; the strategy's numbers are inputs, except beam_size and
    no_repeat_ngram. Token ids are int64. dtype: as in `fused`. compiled=False: runs op by op.
    model: the copy.
    """

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
        texts = Text(source, source_mask_bs), Text(prefix, prefix_mask_bp)
        return self.answers(_one_by_one, strategy, *texts)

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

        uniform_bn: a number in [0, 1) for every token of every answer; it replaces a generator.
        """
        texts = Text(source, source_mask_bs), Text(prefix, prefix_mask_bp)
        return self.answers(_one_by_one, strategy, *texts, uniform_bn)

    def beam_search(
        self,
        source: Array | None,
        strategy: Options,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """Returns the n_best hypotheses of highest `log p / ((5 + n) / 6)^alpha` (BEAM).

        Returns token_bwn `b w n` and score_bw, best first; n counts the end token.
        """
        texts = Text(source, source_mask_bs), Text(prefix, prefix_mask_bp)
        return self.answers(_beams, strategy, *texts, beams=True)


def _one_by_one(model: Transformer, plan: Plan, request: Request) -> Answers:
    """Generates one answer per row, token by token. finite: no logit was +inf or NaN."""
    dtype = wide(model.compute_dtype)

    def step(state: State) -> State:
        logits_bv, state = _continued(model, request, state)
        here, done_b = state["step"], state["done_b"]
        token_b = _choose(plan, request, here, _penalised(plan, request, state, logits_bv))
        token_b = tf.where(done_b, request.pad_id, token_b)
        log_p_b = tf.where(done_b, tf.zeros((), dtype), _log_p(logits_bv, token_b))
        here_n = tf.range(plan.room) == here
        return state | {
            "step": here + 1,
            "token_b1": token_b[:, tf.newaxis],
            "token_bn": tf.where(here_n, token_b[:, tf.newaxis], state["token_bn"]),
            "log_p_bn": tf.where(here_n, log_p_b[:, tf.newaxis], state["log_p_bn"]),
            "done_b": done_b | (token_b == request.end_id),
        }

    shape = [request.last_b1.shape[0], plan.room]
    state = _start(model, plan, request)
    state |= {"token_bn": tf.fill(shape, request.pad_id), "log_p_bn": tf.zeros(shape, dtype)}
    state = loop(step, state, request)
    token_bn = tf.cast(state["token_bn"], tf.int64)
    return {"token_bn": token_bn, "log_p_bn": state["log_p_bn"], "finite": state["finite"]}


def _beams(model: Transformer, plan: Plan, request: Request) -> Answers:
    """Runs the beams of all rows, token by token. finite: no logit was +inf or NaN."""
    batch, size, dtype = request.last_b1.shape[0], plan.beams, wide(model.compute_dtype)
    penalty_n = tf.cast(request.length_penalty_n, dtype)
    longest = tf.gather(penalty_n, request.max_new_tokens - 1)

    def step(state: State) -> State:
        logits_bv, state = _continued(model, request, state)
        here, live, kept, done_b = (state[name] for name in ("step", "live", "kept", "done_b"))
        scores_bv = _penalised(plan, request, state, _log_p(logits_bv))
        scores_bwv = tf.reshape(scores_bv, [batch, size, scores_bv.shape[1]])
        sum_bwv = scores_bwv + live.score_bw[..., tf.newaxis]
        ended_bw = tf.gather(sum_bwv, request.end_id, axis=2) / tf.gather(penalty_n, here)
        ended = beams.keep(kept, live, ended_bw, request.end_id, here)
        kept = beams.choose(done_b, kept, ended)
        is_end_v = tf.range(sum_bwv.shape[2]) == request.end_id
        sum_bwv = tf.where(is_end_v, tf.constant(float("-inf"), dtype), sum_bwv)
        live, token_bw, parent_bw = beams.best(live, sum_bwv, here)
        done_b |= live.score_bw[:, 0] == float("-inf")
        done_b |= beams.stops(live, kept, longest, request.early_stop)
        # The target row that each row continues.
        row_b = tf.reshape(tf.range(batch)[:, tf.newaxis] * size + parent_bw, [-1])
        return state | {
            "step": here + 1,
            "token_b1": tf.reshape(token_bw, [-1, 1]),
            "live": live,
            "kept": kept,
            "done_b": done_b,
            "cache": static_cache.reorder(state["cache"], row_b),
            "seen": [tf.gather(x_bn, row_b) for x_bn in state["seen"]],
        }

    state = _start(model, plan, request)
    state["cache"] = static_cache.branch(state["cache"], size)
    state["token_b1"] = tf.repeat(state["token_b1"], size, axis=0)
    state["seen"] = [tf.repeat(x_bn, size, axis=0) for x_bn in state["seen"]]
    state["live"], state["kept"] = beams.start(batch, size, plan.room, request.pad_id, dtype)
    state = loop(step, state, request)
    score_bw, token_bwn = state["kept"]
    missing_bw1 = score_bw[..., tf.newaxis] == float("-inf")
    token_bwn = tf.cast(tf.where(missing_bw1, request.pad_id, token_bwn), tf.int64)
    return {"token_bwn": token_bwn, "score_bw": score_bw, "finite": state["finite"]}


def _start(model: Transformer, plan: Plan, request: Request) -> State:
    """Returns the loop state after reading all but the last token of the prefix.

    seen: the target so far and its token mask, if penalties or longrope need them; right-aligned,
    so that its length does not matter.
    """
    memory_bsd = None
    if request.source is not None:
        memory_bsd = model.encode(Text(request.source, request.source_mask_bs))
    batch, before = request.before.shape
    length = before + plan.room
    cache = static_cache.start_cache(
        model, memory_bsd, request.source_mask_bs, batch, length=length, start=request.start
    )
    if before:
        mask_bt = request.before_mask_bt
        _, cache = static_cache.forward_step(model, request.before, cache, mask_bt, later=1)
    seen = []
    if plan.repetition or plan.no_repeat_ngram or model.config.rotary_switches:
        wider = [[0, 0], [plan.room, 0]]
        seen = [tf.pad(request.before, wider), tf.pad(request.before_mask_bt, wider)]
    return {
        "step": tf.constant(0),
        "finite": tf.constant(True),
        "cache": cache,
        "done_b": tf.zeros([batch], tf.bool),
        "token_b1": request.last_b1,
        "seen": seen,
    }


def _continued(model: Transformer, request: Request, state: State) -> tuple[tf.Tensor, State]:
    """Reads the last token; returns the logits, -inf for forbidden ids, and the new state."""
    token_b1, cache, seen = state["token_b1"], state["cache"], state["seen"]
    mask_b1 = mask.token_mask(token_b1, model.config.padding_id)
    if model.config.rotary_switches:
        cache = static_cache.read_anew(model, cache, seen[0], seen[1], state["step"] > 0)
    logits_btv, cache = static_cache.forward_step(model, token_b1, cache, mask_b1)
    logits_bv = upcast_half(logits_btv[:, 0])
    if seen:
        new = zip(seen, (token_b1, mask_b1), strict=True)
        seen = [tf.concat([x_bn[:, 1:], x_b1], axis=1) for x_bn, x_b1 in new]
    finite = tf.reduce_all(logits_bv < float("inf"))
    nothing = tf.constant(float("-inf"), logits_bv.dtype)
    logits_bv = tf.where(request.forbidden_v, nothing, logits_bv)
    return logits_bv, state | {"cache": cache, "seen": seen, "finite": finite}


def _log_p(logits_bv: tf.Tensor, token_b: tf.Tensor | None = None) -> tf.Tensor:
    """Returns log p of every token, or of one token per row."""
    x_bv = logits_bv - tf.reduce_max(logits_bv, axis=1, keepdims=True)
    log_sum_b1 = tf.math.log(tf.reduce_sum(tf.exp(x_bv), axis=1, keepdims=True))
    if token_b is None:
        return x_bv - log_sum_b1
    return tf.gather(x_bv, token_b, batch_dims=1) - log_sum_b1[:, 0]


def _penalised(plan: Plan, request: Request, state: State, scores_bv: tf.Tensor) -> tf.Tensor:
    """Returns the scores that choose the next token."""
    if plan.repetition or plan.no_repeat_ngram:
        token_bn, mask_bn = state["seen"]
        scores_bv = sampling.penalise(
            scores_bv, token_bn, request.repetition_penalty, plan.no_repeat_ngram, mask_bn
        )
    is_end_v = tf.range(scores_bv.shape[1]) == request.end_id
    too_early_v = is_end_v & (state["step"] < request.min_new_tokens)
    return tf.where(too_early_v, tf.constant(float("-inf"), scores_bv.dtype), scores_bv)


def _choose(plan: Plan, request: Request, step: tf.Tensor, scores_bv: tf.Tensor) -> tf.Tensor:
    """Returns the next token of each row, or the end token if none is allowed.

    Ties go to the lower id, which `tf.argmax` does not guarantee.
    """
    stuck_b = tf.reduce_max(scores_bv, axis=1) == float("-inf")
    if plan.drawn:
        scores_bv = tf.where(stuck_b[:, tf.newaxis], tf.zeros((), scores_bv.dtype), scores_bv)
        top_k = request.top_k if plan.most else 0
        top_p = request.top_p if plan.by_probability else 1
        kept_bv = sampling.truncate(scores_bv, request.temperature, top_k, top_p, plan.most)
        token_b = sampling.draw(kept_bv, request.uniform_bn[:, step])
    else:
        # These two reductions take half the time of `tf.argmax`.
        largest_b1 = tf.reduce_max(scores_bv, axis=1, keepdims=True)
        count = scores_bv.shape[1]
        ids_bv = tf.where(scores_bv == largest_b1, tf.range(count), count - 1)
        token_b = tf.reduce_min(ids_bv, axis=1)
    return tf.where(stuck_b, request.end_id, tf.cast(token_b, tf.int32))
