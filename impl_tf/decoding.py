"""Answers: greedy search, sampling and beam search, each a loop within one graph."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import mask, weights
from .cache import branch, decode_step, reorder, start_cache
from .fast import beams
from .fast import search as choice
from .fast.fused import fused, refresh
from .fast.request import Plan, plan, request
from .framework import widen
from .transformer import Transformer

__all__ = ["Searcher"]

Options: TypeAlias = "Strategy | Mapping[str, Any]"
State: TypeAlias = "dict[str, Any]"


class Searcher:
    """The truth's searches on the weights that the model has now, with the projections of one input in one kernel.

    A search is one graph compiled by XLA. Sources, prefixes and answers are padded to a few lengths, so that few graphs serve all; the
    strategy's numbers are inputs of the graph, but for beam_size and no_repeat_ngram. Token ids are int64.
    dtype: the weights are rounded to it, and computed in it. compiled=False: operation by operation.
    """

    def __init__(self, model: Transformer, dtype: str | None = None, compiled: bool = True) -> None:
        self._config = model.config
        self._device = next(iter(weights.variables(model, model.config).values())).value.device
        with tf.device(self._device):
            self._model = fused(model, dtype)

        def graph(function: Callable[..., State]) -> Callable[..., State]:
            return tf.function(function, autograph=False, jit_compile=True) if compiled else function

        self._one_by_one, self._beams = graph(self._answers), graph(self._hypotheses)

    @property
    def graphs(self) -> int:
        """How many graphs have been compiled."""
        return sum(getattr(each, "experimental_get_tracing_count", int)() for each in (self._one_by_one, self._beams))

    def refresh(self, model: Transformer) -> None:
        """Takes the weights anew, of the same model or one of its config; no graph is compiled again."""
        refresh(self._model, model)

    def greedy_search(
        self, source: Any, strategy: Options, prefix: Any | None = None, source_mask_bs: Any | None = None
    ) -> dict[str, tf.Tensor]:
        """As the truth's function."""
        strategy = Strategy.of(strategy, self._config)
        found = self._run(self._one_by_one, plan(strategy), strategy, source, prefix, source_mask_bs)
        return {name: found[name][:, : strategy.max_new_tokens] for name in ("token_bn", "log_p_bn")}

    def sample(
        self, source: Any, strategy: Options, uniform_bn: Any, prefix: Any | None = None, source_mask_bs: Any | None = None
    ) -> dict[str, tf.Tensor]:
        """As the truth's function."""
        strategy, uniform_bn = Strategy.of(strategy, self._config), np.asarray(uniform_bn)
        checks.check_uniform(uniform_bn.shape, (len(source), strategy.max_new_tokens), uniform_bn.min(initial=0), uniform_bn.max(initial=0))
        chosen = plan(strategy, drawn=True)
        padded_bn = np.pad(uniform_bn.astype(np.float64), ((0, 0), (0, chosen.room - uniform_bn.shape[1])))
        found = self._run(self._one_by_one, chosen, strategy, source, prefix, source_mask_bs, uniform_bn=padded_bn)
        return {name: found[name][:, : strategy.max_new_tokens] for name in ("token_bn", "log_p_bn")}

    def beam_search(
        self, source: Any, strategy: Options, prefix: Any | None = None, source_mask_bs: Any | None = None
    ) -> dict[str, tf.Tensor]:
        """As the truth's function."""
        strategy = Strategy.of(strategy, self._config)
        found = self._run(self._beams, plan(strategy, strategy.beam_size), strategy, source, prefix, source_mask_bs)
        token_bwn, score_bw = (found[name][:, : strategy.n_best] for name in ("token_bwn", "score_bw"))
        return {"token_bwn": token_bwn[:, :, : strategy.max_new_tokens], "score_bw": score_bw}

    def _run(
        self, search: Callable[..., State], chosen: Plan, strategy: Strategy,
        source: Any, prefix: Any | None, source_mask_bs: Any | None, **more: np.ndarray,
    ) -> State:  # fmt: skip
        prefix, source_mask_bs = (None if array is None else np.asarray(array) for array in (prefix, source_mask_bs))
        inputs = request(self._config, strategy, np.asarray(source), prefix, source_mask_bs) | more
        with tf.device(self._device):
            found = search(chosen, {name: weights.from_numpy(array, self._device) for name, array in inputs.items()})
        checks.check_logits(bool(found["fit"]))
        return found

    def _answers(self, chosen: Plan, given: Mapping[str, tf.Tensor]) -> State:
        """One answer a row, token by token."""

        def body(state: State) -> tuple[State]:
            logits_bv, state = self._read(given, state)
            scores_bv = choice.penalised(chosen, given, state, logits_bv)
            token_b = tf.where(state["done_b"], given["filler"], choice.choose(chosen, given, state["step"], scores_bv))
            log_p_b = tf.where(state["done_b"], tf.zeros((), logits_bv.dtype), choice.log_p(logits_bv, token_b))
            here_n = tf.range(chosen.room) == state["step"]
            return ({
                **state,
                "step": state["step"] + 1,
                "token_b1": token_b[:, tf.newaxis],
                "token_bn": tf.where(here_n, token_b[:, tf.newaxis], state["token_bn"]),
                "log_p_bn": tf.where(here_n, log_p_b[:, tf.newaxis], state["log_p_bn"]),
                "done_b": state["done_b"] | (token_b == given["end_id"]),
            },)  # fmt: skip

        state = self._start(chosen, given)
        batch = given["source"].shape[0]
        state["token_bn"] = tf.fill([batch, chosen.room], given["filler"])
        state["log_p_bn"] = tf.zeros([batch, chosen.room], self._dtype)
        (state,) = tf.while_loop(_going(given), body, (state,))
        return {"token_bn": tf.cast(state["token_bn"], tf.int64), "log_p_bn": state["log_p_bn"], "fit": state["fit"]}

    def _hypotheses(self, chosen: Plan, given: Mapping[str, tf.Tensor]) -> State:
        """The beams of all rows, token by token."""
        batch, size, end_id = given["source"].shape[0], chosen.beams, given["end_id"]
        penalty_n = tf.cast(given["length_penalty_n"], self._dtype)
        longest = tf.gather(penalty_n, given["max_new_tokens"] - 1)
        first_b1 = tf.range(batch)[:, tf.newaxis] * size

        def body(state: State) -> tuple[State]:
            logits_bv, state = self._read(given, state)
            step, live, kept, done_b = (state[name] for name in ("step", "live", "kept", "done_b"))
            scores_bv = choice.penalised(chosen, given, state, choice.log_p(logits_bv))
            total_bwv = tf.reshape(scores_bv, [batch, size, scores_bv.shape[1]]) + live.score_bw[..., tf.newaxis]
            ended_bw = tf.gather(total_bwv, end_id, axis=2) / tf.gather(penalty_n, step)
            kept = beams.choose(done_b, kept, beams.keep(kept, live, ended_bw, end_id, step))
            total_bwv = tf.where(tf.range(total_bwv.shape[2]) == end_id, tf.constant(float("-inf"), self._dtype), total_bwv)
            live, token_bw, parent_bw = beams.best(live, total_bwv, step)
            done_b |= (live.score_bw[:, 0] == float("-inf")) | beams.stops(live, kept, longest, given["early_stop"])
            state |= {"step": step + 1, "live": live, "kept": kept, "done_b": done_b, "token_b1": tf.reshape(token_bw, [-1, 1])}
            return (_continued(state, tf.reshape(first_b1 + parent_bw, [-1])),)

        state = self._start(chosen, given)
        state["cache"] = branch(state["cache"], size)
        state |= {name: tf.repeat(state[name], size, axis=0) for name in ("token_b1", "seen_bn", "seen_mask_bn") if name in state}
        state["live"], state["kept"] = beams.start(batch, size, chosen.room, given["filler"], self._dtype)
        (state,) = tf.while_loop(_going(given), body, (state,))
        kept = state["kept"]
        return {"token_bwn": tf.cast(kept.token_bwn, tf.int64), "score_bw": kept.score_bw, "fit": state["fit"]}

    @property
    def _dtype(self) -> tf.DType:
        """That of log p."""
        return widen(tf.zeros((), self._model.compute_dtype)).dtype

    def _start(self, chosen: Plan, given: Mapping[str, tf.Tensor]) -> State:
        """The state of a loop before its first token: all of the prefix but its last token has been read."""
        memory_bsd = self._model.encode(given["source"], given["source_mask_bs"])
        batch, before = given["before"].shape
        cache = start_cache(self._model, memory_bsd, given["source_mask_bs"], length=before + chosen.room)
        if before:
            _, cache = decode_step(self._model, given["before"], cache, given["before_mask_bt"])
        state = {"step": tf.constant(0), "fit": tf.constant(True), "done_b": tf.zeros([batch], tf.bool), "cache": cache}
        if chosen.repetition or chosen.no_repeat_ngram:
            # The end of the target stands at the end, so that it does not matter how much of it there is.
            wider = [[0, 0], [chosen.room, 0]]
            state |= {"seen_bn": tf.pad(given["before"], wider), "seen_mask_bn": tf.pad(given["before_mask_bt"], wider)}
        return state | {"token_b1": given["last_b1"]}

    def _read(self, given: Mapping[str, tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """The logits after the last token, over what an answer may hold, and the state with the token in cache and target."""
        token_b1 = state["token_b1"]
        logits_btv, cache = decode_step(self._model, token_b1, state["cache"])
        logits_bv = widen(logits_btv[:, 0])
        state = {**state, "cache": cache, "fit": tf.reduce_all(logits_bv < float("inf"))}
        if "seen_bn" in state:
            mask_b1 = mask.token_mask(token_b1, self._config.padding_id)
            state["seen_bn"] = tf.concat([state["seen_bn"][:, 1:], token_b1], axis=1)
            state["seen_mask_bn"] = tf.concat([state["seen_mask_bn"][:, 1:], mask_b1], axis=1)
        return tf.where(given["barred_v"], tf.constant(float("-inf"), logits_bv.dtype), logits_bv), state


def _going(given: Mapping[str, tf.Tensor]) -> Callable[[State], tf.Tensor]:
    return lambda state: (state["step"] < given["max_new_tokens"]) & state["fit"] & ~tf.reduce_all(state["done_b"])


def _continued(state: State, row_b: tf.Tensor) -> State:
    """The state whose row i of the target is what row `row_b[i]` was."""
    state = {**state, "cache": reorder(state["cache"], row_b)}
    return state | {name: tf.gather(state[name], row_b) for name in ("seen_bn", "seen_mask_bn") if name in state}
