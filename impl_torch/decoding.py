"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import framework
from .fast import search
from .fast.compiled import compiled_step, graphs
from .fast.fused import fused
from .fast.request import request
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]


class Searcher:
    """The searches over a snapshot of a model's weights, which later changes of the model leave alone.

    dtype: of the snapshot; by default the model's. compiled: a step of one token is a graph, which serves every length and every value.
    That pays for many searches: the first takes seconds, or most of a minute where the graph holds large kernels (`fast.fused.pack`).
    The device is asked whether all rows are done once in a while, and whether a logit was inf or NaN once at the end.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None, compiled: bool = False) -> None:
        self.model = fused(model, dtype)
        self.step = compiled_step(search.next_token) if compiled else search.next_token

    @torch.inference_mode()
    @graphs()
    def greedy_search(
        self, source: Tensor, strategy: Options, prefix: Tensor | None = None, source_mask_bs: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The answer whose every token is the likeliest, of equals the lower id: token_bn and log_p_bn."""
        return search.one_by_one(self._reading(Strategy.of(strategy, self.model.config), source, prefix, source_mask_bs))

    @torch.inference_mode()
    @graphs()
    def sample(
        self,
        source: Tensor,
        strategy: Options,
        uniform_bn: Tensor,
        prefix: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As `greedy_search`, but each token is drawn by its uniform number: penalties, temperature, top-k, top-p, then draw (SAMPLE)."""
        strategy = Strategy.of(strategy, self.model.config)
        checks.check_uniform(uniform_bn.shape, (len(source), strategy.max_new_tokens), *framework.bounds(uniform_bn))
        reading = self._reading(strategy, source, prefix, source_mask_bs)
        return search.one_by_one(reading, uniform_bn if strategy.temperature else None)

    @torch.inference_mode()
    @graphs()
    def beam_search(
        self, source: Tensor, strategy: Options, prefix: Tensor | None = None, source_mask_bs: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The hypotheses of the highest score `log p / ((5 + n) / 6)^alpha` (BEAM): token_bwn and score_bw. Beams are copies of a row."""
        strategy = Strategy.of(strategy, self.model.config)
        return search.beam_search(self._reading(strategy, source, prefix, source_mask_bs, copies=strategy.beam_size))

    def _reading(self, strategy: Strategy, *given: Any, copies: int = 1) -> search.Reading:
        """given: source, prefix and source mask."""
        return search.Reading(self.model, self.step, request(self.model.config, strategy, *given), copies)
