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

from .fast import search
from .fast.compiled import graphs
from .fast.fused import fused
from .fast.request import Plan, batch_of, plan, request
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]
Answers = dict[str, jax.Array]


class Searcher:
    """The searches of a model as it is now: its weights are copied by `fused`, and rounded to `dtype` where given.

    dtype: int8 is that of the projections (INT8). What stands in for a projection, such as an adapter, is called as it is.
    A whole search is one XLA program: the encoder, the prefix, and a loop of steps that ends with the last answer. Source, prefix and
    answer are padded to few lengths, and the strategy's numbers are arguments but for beam_size, no_repeat_ngram and top_k, so that others
    need no new program; all searchers of models of the same structure share search.
    Ids are checked before the program, and whether a logit was inf or NaN after it. compiled=False runs operation by operation.
    """

    def __init__(
        self, model: Transformer, dtype: Dtype | None = None, compiled: bool = True
    ) -> None:
        self._model: Transformer = (_fused if compiled else fused)(model, dtype)
        self._leaves, self._structure = jax.tree.flatten(self._model)
        self._compiled = compiled

    @property
    def graphs(self) -> int:
        """How many programs have been compiled for the searches of all models."""
        return graphs(search.one_by_one, search.beam_search)

    def greedy_search(
        self,
        source: Any,
        strategy: Options,
        prefix: Any = None,
        source_mask_bs: Any = None,
        prefix_mask_bp: Any = None,
    ) -> Answers:
        """`token_n = argmax_v log p(v | source, tokens before)`, of equals the lower id: token_bn `b n` and log_p_bn of each token.

        source: ids `b s`; None of a decoder alone, which needs a prefix, its prompt. strategy: a Strategy, or a mapping of its fields.
        prefix: ids `b p` that every answer follows, in place of the start token, shorter ones padded on the left. prefix_mask_bp: boolean,
        True = real token; without it, every id but the padding id.
        Raises ValueError on ids and options that do not fit, where prefix and answer may be longer than the table of positions, and where
        a logit is inf or NaN.
        """
        return self._one_by_one(
            Strategy.of(strategy, self._model.config),
            source,
            prefix,
            source_mask_bs,
            prefix_mask_bp,
        )

    def sample(
        self,
        source: Any,
        strategy: Options,
        uniform_bn: Any,
        prefix: Any = None,
        source_mask_bs: Any = None,
        prefix_mask_bp: Any = None,
    ) -> Answers:
        """As `greedy_search`, but each token is drawn by its uniform number: penalties, temperature, top-k, top-p, then `draw` (SAMPLE)."""
        strategy, uniform_bn = Strategy.of(strategy, self._model.config), np.asarray(uniform_bn)
        shape = (
            batch_of(self._model.config, strategy, source, prefix, source_mask_bs),
            strategy.max_new_tokens,
        )
        checks.check_uniform(
            uniform_bn.shape, shape, uniform_bn.min(initial=0), uniform_bn.max(initial=0)
        )
        return self._one_by_one(
            strategy,
            source,
            prefix,
            source_mask_bs,
            prefix_mask_bp,
            uniform_bn if strategy.temperature else None,
        )

    def beam_search(
        self,
        source: Any,
        strategy: Options,
        prefix: Any = None,
        source_mask_bs: Any = None,
        prefix_mask_bp: Any = None,
    ) -> Answers:
        """The n_best hypotheses of the highest `log p / ((5 + n) / 6)^alpha`: token_bwn `b w n`, best first, and score_bw (BEAM).

        The beams of a row are queries of one cache: none is reordered (`fast.beams.Beams`).
        """
        strategy = Strategy.of(strategy, self._model.config)
        found = self._run(
            search.beam_search,
            plan(strategy, strategy.beam_size),
            strategy,
            source,
            prefix,
            source_mask_bs,
            prefix_mask_bp,
        )
        token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
        return {
            "token_bwn": jax.device_put(token_bwn),
            "score_bw": jax.device_put(found["score_bw"][:, : strategy.n_best]),
        }

    def _one_by_one(
        self,
        strategy: Strategy,
        source: Any,
        prefix: Any,
        source_mask_bs: Any,
        prefix_mask_bp: Any,
        uniform_bn: Any = None,
    ) -> Answers:
        chosen = plan(strategy, drawn=uniform_bn is not None)
        found = self._run(
            search.one_by_one,
            chosen,
            strategy,
            source,
            prefix,
            source_mask_bs,
            prefix_mask_bp,
            uniform_bn,
        )
        return {
            name: jax.device_put(found[name][:, : strategy.max_new_tokens])
            for name in ("token_bn", "log_p_bn")
        }

    def _run(
        self, program: Any, chosen: Plan, strategy: Strategy, source: Any, prefix: Any, *given: Any
    ) -> dict[str, np.ndarray]:
        """What the program returns, for arguments that it takes unchecked."""
        arguments = request(self._model.config, strategy, source, prefix, *given)
        self._model.check_ids(source, prefix)
        with contextlib.nullcontext() if self._compiled else jax.disable_jit():
            found = jax.device_get(program(self._structure, self._leaves, chosen, arguments))
        checks.check_logits(bool(found.pop("valid")))
        return found


_fused = functools.partial(jax.jit, static_argnames="dtype")(fused)
