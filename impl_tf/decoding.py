"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import weights
from .fast import search
from .fast.fused import fused, refresh
from .fast.request import Plan, plan, request
from .transformer import Transformer

__all__ = ["Searcher"]

Answers: TypeAlias = "dict[str, tf.Tensor]"
Options: TypeAlias = "Strategy | Mapping[str, Any]"
Search: TypeAlias = "Callable[..., Answers]"


class Searcher:
    """The searches on the weights that the model has now, with the projections of one input in one kernel.

    A search is one graph compiled by XLA. Sources, prefixes and answers are padded to a few lengths, so that few graphs serve all; the
    strategy's numbers are inputs of the graph, but for beam_size and no_repeat_ngram. Token ids are int64.
    dtype: the weights are rounded to it, and computed in it; int8: the projections (INT8). compiled=False: operation by operation.
    model: the copy that is run.
    """

    def __init__(self, model: Transformer, dtype: str | None = None, compiled: bool = True) -> None:
        self._device = next(iter(weights.variables(model, model.config).values())).value.device
        with tf.device(self._device):
            self.model = fused(model, dtype)
        graph = (
            partial(tf.function, autograph=False, jit_compile=True)
            if compiled
            else lambda function: function
        )
        self._one_by_one, self._beam_search = (
            graph(partial(each, self.model)) for each in (search.one_by_one, search.beam_search)
        )

    @property
    def graphs(self) -> int:
        """How many graphs have been compiled."""
        return sum(
            getattr(each, "experimental_get_tracing_count", int)()
            for each in (self._one_by_one, self._beam_search)
        )

    def refresh(self, model: Transformer) -> None:
        """Takes the weights anew, of the same model or one of its config; no graph is compiled again."""
        refresh(self.model, model)

    def greedy_search(
        self,
        source: Any | None,
        strategy: Options,
        prefix: Any | None = None,
        source_mask_bs: Any | None = None,
        prefix_mask_bp: Any | None = None,
    ) -> Answers:
        """The answer whose every token is the likeliest; of equals the lower id.

        source: ids `b s`; None of a decoder alone, which needs a prefix, its prompt. strategy: a Strategy, or a mapping of its fields.
        prefix: ids `b p` that every answer follows, in place of the start token; shorter ones are padded on the left. prefix_mask_bp:
        boolean, True = real token; without it, every id but the padding id. Returns token_bn, the answers without their prefix, filled with
        padding after their end, and log_p_bn, the model's `log p` of each token, 0 after the end.
        Raises ValueError on ids and options that do not fit, on more tokens than positions, and where a logit is inf or NaN.
        """
        strategy = Strategy.of(strategy, self.model.config)
        found = self._run(
            self._one_by_one,
            plan(strategy),
            strategy,
            source,
            prefix,
            source_mask_bs,
            prefix_mask_bp,
        )
        return {
            name: found[name][:, : strategy.max_new_tokens] for name in ("token_bn", "log_p_bn")
        }

    def sample(
        self,
        source: Any | None,
        strategy: Options,
        uniform_bn: Any,
        prefix: Any | None = None,
        source_mask_bs: Any | None = None,
        prefix_mask_bp: Any | None = None,
    ) -> Answers:
        """As `greedy_search`, but each token is drawn: penalties, temperature, top-k, top-p, then the inverse distribution (SAMPLE).

        uniform_bn: a number in [0, 1) for every token of every answer, which alone decides what is drawn.
        """
        strategy = Strategy.of(strategy, self.model.config)
        given = source, prefix, source_mask_bs, prefix_mask_bp, uniform_bn
        found = self._run(self._one_by_one, plan(strategy, drawn=True), strategy, *given)
        return {
            name: found[name][:, : strategy.max_new_tokens] for name in ("token_bn", "log_p_bn")
        }

    def beam_search(
        self,
        source: Any | None,
        strategy: Options,
        prefix: Any | None = None,
        source_mask_bs: Any | None = None,
        prefix_mask_bp: Any | None = None,
    ) -> Answers:
        """The hypotheses of the highest score `log p / ((5 + n) / 6)^alpha`, n tokens with the end token (BEAM).

        Returns token_bwn and score_bw, the n_best hypotheses of each row, best first; where there are fewer, padding and -inf.
        """
        strategy = Strategy.of(strategy, self.model.config)
        given = source, prefix, source_mask_bs, prefix_mask_bp
        found = self._run(self._beam_search, plan(strategy, strategy.beam_size), strategy, *given)
        token_bwn, score_bw = (
            found[name][:, : strategy.n_best] for name in ("token_bwn", "score_bw")
        )
        return {"token_bwn": token_bwn[:, :, : strategy.max_new_tokens], "score_bw": score_bw}

    def _run(self, run: Search, chosen: Plan, strategy: Strategy, *given: Any) -> Answers:
        asked = request(
            self.model.config,
            strategy,
            *(None if array is None else np.asarray(array) for array in given),
        )
        with tf.device(self._device):
            tensors = [
                None if array is None else weights.from_numpy(array, self._device)
                for array in asked
            ]
            found = run(chosen, type(asked)(*tensors))
        checks.check_logits(bool(found["fit"]))
        return found
