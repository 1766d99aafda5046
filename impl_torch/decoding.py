"""Text generation: greedy search, sampling and beam search with incremental decoding."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import framework
from .beams import Beams
from .programs.compiled import compiled_step
from .programs.fused import Dtype, fused
from .programs.request import request
from .programs.search import Reading, all_done, next_token
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]


class Searcher:
    """Searches over a snapshot of the model's weights; later changes to the model have no effect.

    dtype: of the snapshot, default the model's; "int8", on CPUs, applies to its projections (INT8).
    compiled: run each one-token step as a program that serves every length and value. The first
    search compiles it, in half a minute or less, and caches it on disk in `TORCHINDUCTOR_CACHE_DIR`
    for the same sizes and number of rows, whatever the weights (`programs.program`). The host
    checks now and then whether all rows are done, and at the end for logits of inf or NaN.

    In every search, source is None for a decoder-only model, which needs a prefix, its prompt;
    shorter prefixes are padded on the left, according to prefix_mask_bp.
    """

    def __init__(
        self, model: Transformer, dtype: Dtype | None = None, compiled: bool = False
    ) -> None:
        model.config.need_decoder()
        self.model = fused(model, dtype)
        self.step = compiled_step(next_token) if compiled else next_token

    def to(self, device: torch.device | str) -> "Searcher":
        """Moves the snapshot to the device; returns the searcher."""
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
        """Returns token_bn and log_p_bn: the likeliest token at every step; ties: the lower id."""
        reading = start(self, strategy, source, prefix, source_mask_bs, prefix_mask_bp)
        return one_by_one(reading, lambda step: reading.likeliest())

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
        """Like `greedy_search`, but draws each token (SAMPLE).

        uniform_bn replaces a generator, so that every implementation draws the same tokens.
        """
        reading = start(self, strategy, source, prefix, source_mask_bs, prefix_mask_bp)
        shape = reading.rows, reading.strategy.max_new_tokens
        checks.check_uniform(uniform_bn.shape, shape, *framework.bounds(uniform_bn))
        if not reading.strategy.temperature:
            return one_by_one(reading, lambda step: reading.likeliest())
        return one_by_one(reading, lambda step: reading.drawn(uniform_bn[:, step]))

    @torch.inference_mode()
    def beam_search(
        self,
        source: Tensor | None,
        strategy: Options,
        prefix: Tensor | None = None,
        source_mask_bs: Tensor | None = None,
        prefix_mask_bp: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Returns token_bwn and score_bw, the best `log p / ((5 + n) / 6)^alpha` (BEAM)."""
        strategy = Strategy.of(strategy, self.model.config)
        copies = strategy.beam_size
        return beams(start(self, strategy, source, prefix, source_mask_bs, prefix_mask_bp, copies))


def one_by_one(
    reading: Reading, choose: Callable[[int], tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Generates one answer per row, token by token. choose: step -> tokens `b` and their log p."""
    strategy, pad_id = reading.strategy, reading.request.pad_id
    done_b = torch.zeros_like(reading.next.token_b, dtype=torch.bool)
    tokens, log_ps = [], []
    for step in range(strategy.max_new_tokens):
        token_b, log_p_b = choose(step)
        token_b = token_b.masked_fill(done_b, pad_id)
        tokens.append(token_b)
        log_ps.append(log_p_b.masked_fill(done_b, 0))
        done_b = done_b | (token_b == strategy.end_id)
        if step + 1 == strategy.max_new_tokens or all_done(done_b, step):
            break
        reading.read(token_b[:, None])
    reading.check()
    rest = 0, strategy.max_new_tokens - len(tokens)
    return {
        "token_bn": F.pad(torch.stack(tokens, dim=1), rest, value=pad_id),
        "log_p_bn": F.pad(torch.stack(log_ps, dim=1), rest),
    }


def beams(reading: Reading) -> dict[str, Tensor]:
    """Returns the hypotheses of all rows, whose beams advance together."""
    strategy, log_total_b = reading.strategy, reading.next.log_total_b
    found = Beams(strategy, reading.rows, log_total_b.dtype, log_total_b.device)
    for step in range(strategy.max_new_tokens):
        log_p_bv = reading.next.scores_bv - reading.next.log_total_b[:, None]
        scores_bwv = reading.penalised(log_p_bv).unflatten(0, (-1, strategy.beam_size))
        token_bt, row_b = found.advance(scores_bwv)
        if step + 1 == strategy.max_new_tokens or all_done(found.done_b, step):
            break
        reading.read(token_bt, row_b)
    reading.check()
    return found.n_best(reading.request.pad_id)


def start(
    searcher: Searcher,
    strategy: Options,
    source: Tensor | None,
    prefix: Tensor | None,
    source_mask_bs: Tensor | None,
    prefix_mask_bp: Tensor | None,
    copies: int = 1,
) -> Reading:
    """Returns the model after reading the prefix, with this many copies of each row."""
    model = searcher.model
    strategy = Strategy.of(strategy, model.config)
    asked = request(model.config, strategy, source, prefix, source_mask_bs, prefix_mask_bp)
    return Reading(model, searcher.step, asked, copies)
