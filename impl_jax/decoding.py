"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.typing import Dtype

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from .fast import search as programs
from .fast.fused import fused
from .fast.request import Plan, plan, request
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]
Answers = dict[str, jax.Array]


class Searcher:
    """The searches of a model as it is now: its weights are copied by `fused`, and rounded to `dtype` where given.

    A whole search is one XLA program: the encoder, the prefix, and a loop of steps that ends with the last answer. Source, prefix and
    answer are padded to few lengths, and the strategy's numbers are arguments but for beam_size, no_repeat_ngram and top_k, so that others
    need no new program; all searchers of models of the same structure share programs.
    Ids are checked before the program, and whether a logit was inf or NaN after it. compiled=False runs operation by operation.
    """

    def __init__(self, model: Transformer, dtype: Dtype | None = None, compiled: bool = True) -> None:
        self._model: Transformer = (_fused if compiled else fused)(model, dtype)
        self._leaves, self._structure = jax.tree.flatten(self._model)
        self._compiled = compiled

    def greedy_search(self, source: Any, strategy: Options, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        strategy = Strategy.of(strategy, self._model.config)
        return self._one_by_one(plan(strategy), strategy, source, prefix, source_mask_bs)

    def sample(self, source: Any, strategy: Options, uniform_bn: Any, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        strategy, uniform_bn = Strategy.of(strategy, self._model.config), np.asarray(uniform_bn)
        checks.check_uniform(uniform_bn.shape, (len(source), strategy.max_new_tokens), uniform_bn.min(initial=0), uniform_bn.max(initial=0))
        if not strategy.temperature:
            return self._one_by_one(plan(strategy), strategy, source, prefix, source_mask_bs)
        return self._one_by_one(plan(strategy, drawn=True), strategy, source, prefix, source_mask_bs, uniform_bn)

    def beam_search(self, source: Any, strategy: Options, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        """The beams of a row are queries of one cache: none is reordered (`beams.Beams`)."""
        strategy = Strategy.of(strategy, self._model.config)
        found = self._run(programs.beam_search, plan(strategy, strategy.beam_size), strategy, source, prefix, source_mask_bs)
        token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
        return {"token_bwn": jax.device_put(token_bwn), "score_bw": jax.device_put(found["score_bw"][:, : strategy.n_best])}

    def _one_by_one(self, chosen: Plan, strategy: Strategy, *given: Any) -> Answers:
        found = self._run(programs.one_by_one, chosen, strategy, *given)
        return {name: jax.device_put(found[name][:, : strategy.max_new_tokens]) for name in ("token_bn", "log_p_bn")}

    def _run(self, program: Any, chosen: Plan, strategy: Strategy, source: Any, prefix: Any, *given: Any) -> dict[str, np.ndarray]:
        """What the program returns, for arguments that it takes unchecked."""
        asked = request(self._model.config, strategy, source, prefix, *given)
        self._model.source_embedding.check_ids(source)
        if prefix is not None:
            (self._model.target_embedding or self._model.source_embedding).check_ids(prefix)
        with contextlib.nullcontext() if self._compiled else jax.disable_jit():
            found = jax.device_get(program(self._structure, self._leaves, chosen, asked))
        checks.check_logits(bool(found.pop("fit")))
        return found


_fused = functools.partial(jax.jit, static_argnames="dtype")(fused)
