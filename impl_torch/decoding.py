"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import framework
from .fast import search
from .fast.compiled import compiled_step
from .fast.fused import Dtype, fused
from .fast.request import Request, request
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]


class Searcher:
    """The searches over a snapshot of a model's weights, which later changes of the model leave alone.

    dtype: of the snapshot; by default the model's; "int8", on CPUs: of its projections (INT8). compiled: a step of one token is a program,
    which serves every length and every value. The first search compiles it, in half a minute or less, unless a process before it has: the
    program stays on the disk, in the folder that `TORCHINDUCTOR_CACHE_DIR` names, and is found again for the same sizes and number of
    rows, whatever the weights (`fast.program`).
    The device is asked whether all rows are done once in a while, and whether a logit was inf or NaN once at the end.
    """

    def __init__(
        self, model: Transformer, dtype: Dtype | None = None, compiled: bool = False
    ) -> None:
        model.config.need_decoder()
        self.model = fused(model, dtype)
        self.step = compiled_step(search.next_token) if compiled else search.next_token

    def to(self, device: torch.device | str) -> "Searcher":
        """Moves the snapshot to the device; returns the searcher itself."""
        self.model.to(device)
        return self

    @torch.inference_mode()
    def greedy_search(
        self,
        source: Tensor | None,
        strategy: Options,
        prefix: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        prefix_mask_bp: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The answer whose every token is the likeliest, of equals the lower id: token_bn and log_p_bn.

        source: None of a decoder alone, which needs a prefix, its prompt; shorter ones are padded on the left, as prefix_mask_bp says.
        """
        asked = self._request(strategy, source, prefix, source_mask_bs, prefix_mask_bp)
        return search.one_by_one(search.Reading(self.model, self.step, asked))

    @torch.inference_mode()
    def sample(
        self,
        source: Tensor | None,
        strategy: Options,
        uniform_bn: Tensor,
        prefix: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        prefix_mask_bp: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As `greedy_search`, but each token is drawn by its uniform number: penalties, temperature, top-k, top-p, then draw (SAMPLE)."""
        asked = self._request(strategy, source, prefix, source_mask_bs, prefix_mask_bp)
        shape = len(asked.prefix_bp), asked.strategy.max_new_tokens
        checks.check_uniform(uniform_bn.shape, shape, *framework.bounds(uniform_bn))
        return search.one_by_one(
            search.Reading(self.model, self.step, asked),
            uniform_bn if asked.strategy.temperature else None,
        )

    @torch.inference_mode()
    def beam_search(
        self,
        source: Tensor | None,
        strategy: Options,
        prefix: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        prefix_mask_bp: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The hypotheses of the highest score `log p / ((5 + n) / 6)^alpha` (BEAM): token_bwn and score_bw. Beams are copies of a row."""
        asked = self._request(strategy, source, prefix, source_mask_bs, prefix_mask_bp)
        return search.beam_search(
            search.Reading(self.model, self.step, asked, copies=asked.strategy.beam_size)
        )

    def _request(self, strategy: Options, *given: Tensor | None) -> Request:
        """given: source, prefix and the masks of both."""
        return request(self.model.config, Strategy.of(strategy, self.model.config), *given)
