"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy.strategy import Strategy

from . import beams, cache, mask, sampling, weights
from .precision import upcast_half
from .programs.fused import fused, refresh
from .programs.search import Answers, Array, Plan, Program, Request, plan
from .transformer import Transformer
from .values import Text

__all__ = ["Searcher"]

Options: TypeAlias = "Strategy | Mapping[str, Any]"
State: TypeAlias = "dict[str, Any]"  # the variables of a search's loop


class Searcher:
    """The searches on the weights that the model has now, its projections of one input fused.

    A search is one graph compiled by XLA. Sources, prefixes and answers are padded to a few
    lengths, so that few graphs serve all; the strategy's numbers are inputs of the graph, except
    beam_size and no_repeat_ngram. Token ids are int64. dtype: the weights are rounded to it, and
    computed in it; int8: the projections (INT8). compiled=False: operation by operation. model: the
    copy that is run.
    """

    def __init__(self, model: Transformer, dtype: str | None = None, compiled: bool = True) -> None:
        device = next(iter(weights.variables(model, model.config).values())).value.device
        with tf.device(device):
            self.model = fused(model, dtype)
        self._one_by_one = Program(_one_by_one, self.model, device, compiled)
        self._beam_search = Program(_beam_search, self.model, device, compiled)

    @property
    def graphs(self) -> int:
        """The number of graphs that have been compiled."""
        return self._one_by_one.graphs + self._beam_search.graphs

    def refresh(self, model: Transformer) -> None:
        """Takes the weights anew, of the same model or one of its config; no graph is compiled."""
        refresh(self.model, model)

    def greedy_search(
        self,
        source: Array | None,
        strategy: Options,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """The answer whose every token is the likeliest; of equals the lower id.

        source: ids `b s`; None in a decoder-only model, which needs a prefix, its prompt. strategy:
        a Strategy, or a mapping of its fields. prefix: ids `b p` that every answer follows, in
        place of the start token; shorter ones are padded on the left. prefix_mask_bp: boolean, True
        = real token; by default every id but the padding id. Returns token_bn, the answers without
        their prefix, filled with padding after their end, and log_p_bn, the model's `log p` of each
        token, 0 after the end. Raises ValueError on ids and options that do not fit, on more tokens
        than positions, and if a logit is inf or NaN.
        """
        strategy = Strategy.of(strategy, self.model.config)
        given = source, prefix, source_mask_bs, prefix_mask_bp
        return _cut(self._one_by_one(plan(strategy), strategy, *given), strategy)

    def sample(
        self,
        source: Array | None,
        strategy: Options,
        uniform_bn: Array,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """`greedy_search`, but each token is drawn: penalties, temperature, top-k, top-p, then the
        inverse distribution (SAMPLE).

        uniform_bn: a number in [0, 1) for every token of every answer, which decides what is drawn.
        """
        strategy = Strategy.of(strategy, self.model.config)
        given = source, prefix, source_mask_bs, prefix_mask_bp, uniform_bn
        return _cut(self._one_by_one(plan(strategy, drawn=True), strategy, *given), strategy)

    def beam_search(
        self,
        source: Array | None,
        strategy: Options,
        prefix: Array | None = None,
        source_mask_bs: Array | None = None,
        prefix_mask_bp: Array | None = None,
    ) -> Answers:
        """The hypotheses of the highest score `log p / ((5 + n) / 6)^alpha`, n tokens with the end
        token (BEAM).

        Returns token_bwn and score_bw, the n_best hypotheses of each row, best first; missing ones
        are padding and -inf.
        """
        strategy = Strategy.of(strategy, self.model.config)
        given = source, prefix, source_mask_bs, prefix_mask_bp
        found = self._beam_search(plan(strategy, strategy.beam_size), strategy, *given)
        token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
        return {"token_bwn": token_bwn, "score_bw": found["score_bw"][:, : strategy.n_best]}


def _one_by_one(model: Transformer, plan: Plan, request: Request) -> Answers:
    """One answer a row, token by token. finite: whether no logit was +inf or NaN."""
    dtype = _score_dtype(model)

    def step(state: State) -> tuple[State]:
        logits_bv, state = _next_logits(model, request, state)
        here, done_b = state["step"], state["done_b"]
        token_b = _choose(plan, request, here, _penalised(plan, request, state, logits_bv))
        token_b = tf.where(done_b, request.pad_id, token_b)
        log_p_b = tf.where(done_b, tf.zeros((), dtype), _log_p(logits_bv, token_b))
        here_n = tf.range(plan.room) == here
        state |= {
            "step": here + 1,
            "token_b1": token_b[:, tf.newaxis],
            "token_bn": tf.where(here_n, token_b[:, tf.newaxis], state["token_bn"]),
            "log_p_bn": tf.where(here_n, log_p_b[:, tf.newaxis], state["log_p_bn"]),
            "done_b": done_b | (token_b == request.end_id),
        }
        return (state,)

    shape = [request.last_b1.shape[0], plan.room]
    state = _start(model, plan, request)
    state |= {"token_bn": tf.fill(shape, request.pad_id), "log_p_bn": tf.zeros(shape, dtype)}
    (state,) = tf.while_loop(_goes_on(request), step, (state,))
    token_bn = tf.cast(state["token_bn"], tf.int64)
    return {"token_bn": token_bn, "log_p_bn": state["log_p_bn"], "finite": state["finite"]}


def _beam_search(model: Transformer, plan: Plan, request: Request) -> Answers:
    """The beams of all rows, token by token. finite: whether no logit was +inf or NaN."""
    batch, size, dtype = request.last_b1.shape[0], plan.beams, _score_dtype(model)
    penalty_n = tf.cast(request.length_penalty_n, dtype)
    longest = tf.gather(penalty_n, request.max_new_tokens - 1)

    def step(state: State) -> tuple[State]:
        logits_bv, state = _next_logits(model, request, state)
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
        # The row of the target that each row continues.
        row_b = tf.reshape(tf.range(batch)[:, tf.newaxis] * size + parent_bw, [-1])
        state |= {"step": here + 1, "live": live, "kept": kept, "done_b": done_b}
        state["token_b1"] = tf.reshape(token_bw, [-1, 1])
        state["cache"] = cache.reorder(state["cache"], row_b)
        state |= {name: tf.gather(x, row_b) for name, x in _seen(state).items()}
        return (state,)

    state = _start(model, plan, request)
    state["cache"] = cache.branch(state["cache"], size)
    rows = {"token_b1": state["token_b1"], **_seen(state)}
    state |= {name: tf.repeat(x, size, axis=0) for name, x in rows.items()}
    state["live"], state["kept"] = beams.start(batch, size, plan.room, request.pad_id, dtype)
    (state,) = tf.while_loop(_goes_on(request), step, (state,))
    token_bwn = tf.cast(state["kept"].token_bwn, tf.int64)
    return {"token_bwn": token_bwn, "score_bw": state["kept"].score_bw, "finite": state["finite"]}


def _start(model: Transformer, plan: Plan, request: Request) -> State:
    """The state of a loop before its first token: all but the last token of the prefix is read."""
    memory_bsd = None
    if request.source is not None:
        memory_bsd = model.encode(Text(request.source, request.source_mask_bs))
    batch, before = request.before.shape
    length = before + plan.room
    held = cache.start_cache(model, memory_bsd, request.source_mask_bs, batch, length=length)
    held = {**held, "start": request.start}
    if before:
        given = request.before, held, request.before_mask_bt
        _, held = cache.forward_step(model, *given, ahead=1)
    state: State = {"step": tf.constant(0), "finite": tf.constant(True), "cache": held}
    state |= {"done_b": tf.zeros([batch], tf.bool), "token_b1": request.last_b1}
    if plan.repetition or plan.no_repeat_ngram or model.config.rotary_switches:
        # The end of the target stands at the end, so that its length does not matter.
        wider = [[0, 0], [plan.room, 0]]
        state["seen_bn"] = tf.pad(request.before, wider)
        state["seen_mask_bn"] = tf.pad(request.before_mask_bt, wider)
    return state


def _goes_on(request: Request) -> Callable[[State], tf.Tensor]:
    return lambda state: (
        (state["step"] < request.max_new_tokens) & state["finite"] & ~tf.reduce_all(state["done_b"])
    )


def _next_logits(model: Transformer, request: Request, state: State) -> tuple[tf.Tensor, State]:
    """Reads the last token: the logits of the tokens that an answer may hold, and the new state."""
    token_b1 = state["token_b1"]
    mask_b1 = mask.token_mask(token_b1, model.config.padding_id)
    held = _read_anew(model, state) if model.config.rotary_switches else state["cache"]
    logits_btv, held = cache.forward_step(model, token_b1, held, mask_b1)
    logits_bv = upcast_half(logits_btv[:, 0])
    state = {**state, "cache": held, "finite": tf.reduce_all(logits_bv < float("inf"))}
    for name, x_b1 in {"seen_bn": token_b1, "seen_mask_bn": mask_b1}.items():
        if name in state:
            state[name] = tf.concat([state[name][:, 1:], x_b1], axis=1)
    nothing = tf.constant(float("-inf"), logits_bv.dtype)
    return tf.where(request.forbidden_v, nothing, logits_bv), state


def _read_anew(model: Transformer, state: State) -> cache.Cache:
    """The cache; where the next token is the first one beyond the original length of longrope, with
    all keys rotated by the frequencies of long texts."""
    held, seen_bn, seen_mask_bn = (state[name] for name in ("cache", "seen_bn", "seen_mask_bn"))
    read, length = held["read"], cache.text_length(model.config, held)
    beyond = tf.reduce_any([length == original for original in model.config.rotary_switches])

    def again() -> cache.Cache:
        # The target from the start of the axis, at whose end it stands.
        target_bt, mask_bt = (
            tf.roll(x_bn, read - x_bn.shape[1], axis=1) for x_bn in (seen_bn, seen_mask_bn)
        )
        nothing = {"read": tf.constant(0), "target_mask_bt": tf.zeros_like(held["target_mask_bt"])}
        given = target_bt, {**held, **nothing}, mask_bt
        return cache.forward_step(model, *given, ahead=1, known=read)[1]

    return tf.cond(beyond & (state["step"] > 0), again, lambda: held)


def _seen(state: State) -> State:
    """The target so far and its token mask, if penalties or longrope need them."""
    return {name: state[name] for name in ("seen_bn", "seen_mask_bn") if name in state}


def _penalised(plan: Plan, request: Request, state: State, scores_bv: tf.Tensor) -> tf.Tensor:
    """The scores by which the next token is chosen."""
    seen = _seen(state)
    if plan.repetition or plan.no_repeat_ngram:
        penalties = request.repetition_penalty, plan.no_repeat_ngram, seen["seen_mask_bn"]
        scores_bv = sampling.penalise(scores_bv, seen["seen_bn"], *penalties)
    is_end_v = tf.range(scores_bv.shape[1]) == request.end_id
    too_early_v = is_end_v & (state["step"] < request.min_new_tokens)
    return tf.where(too_early_v, tf.constant(float("-inf"), scores_bv.dtype), scores_bv)


def _choose(plan: Plan, request: Request, step: tf.Tensor, scores_bv: tf.Tensor) -> tf.Tensor:
    """The next token of each row, which is the end if nothing may follow."""
    stuck_b = tf.reduce_max(scores_bv, axis=1) == float("-inf")
    if plan.drawn:
        scores_bv = tf.where(stuck_b[:, tf.newaxis], tf.zeros((), scores_bv.dtype), scores_bv)
        top_k = request.top_k if plan.most else 0
        top_p = request.top_p if plan.by_probability else 1
        kept_bv = sampling.truncate(scores_bv, request.temperature, top_k, top_p, plan.most)
        token_b = sampling.draw(kept_bv, request.uniform_bn[:, step])
    else:
        token_b = _likeliest(scores_bv)
    return tf.where(stuck_b, request.end_id, tf.cast(token_b, tf.int32))


def _likeliest(scores_bv: tf.Tensor) -> tf.Tensor:
    """The id of the largest score; of equals the lower one, which `tf.argmax` does not promise.

    These two reductions take half its time.
    """
    ids, largest_b1 = tf.range(scores_bv.shape[1]), tf.reduce_max(scores_bv, axis=1, keepdims=True)
    return tf.reduce_min(tf.where(scores_bv == largest_b1, ids, scores_bv.shape[1] - 1), axis=1)


def _log_p(logits_bv: tf.Tensor, token_b: tf.Tensor | None = None) -> tf.Tensor:
    """log p of every token, or of one token of each row."""
    x_bv = logits_bv - tf.reduce_max(logits_bv, axis=1, keepdims=True)
    log_sum_b1 = tf.math.log(tf.reduce_sum(tf.exp(x_bv), axis=1, keepdims=True))
    if token_b is None:
        return x_bv - log_sum_b1
    return tf.gather(x_bv, token_b, batch_dims=1) - log_sum_b1[:, 0]


def _score_dtype(model: Transformer) -> tf.DType:
    return upcast_half(tf.zeros((), model.compute_dtype)).dtype


def _cut(found: Answers, strategy: Strategy) -> Answers:
    """The answers of `_one_by_one` without the room that the strategy does not need."""
    return {name: found[name][:, : strategy.max_new_tokens] for name in ("token_bn", "log_p_bn")}
