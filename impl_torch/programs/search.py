"""The model side of a search: reads tokens step by step, with few reads from the device."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from reference_numpy import TransformerConfig, checks

from .. import mask, precision, sampling
from ..transformer import Transformer
from ..values import Text
from . import fused, static_cache, unpadding
from .request import Request
from .static_cache import StaticCache, forward_step

__all__ = ["NextToken", "Reading", "all_done", "next_token"]


class NextToken(NamedTuple):
    """The scores of the next token.

    logits_bv: -inf for tokens excluded from answers. scores_bv: also -inf for the end token while
    an answer must not end; token_b is their likeliest token and log_p_b its `log p`. log_total_b:
    `log p` is logits minus this. finite: no logit was inf or NaN.
    """

    logits_bv: Tensor
    scores_bv: Tensor
    log_total_b: Tensor
    token_b: Tensor
    log_p_b: Tensor
    finite: Tensor


def next_token(
    model: Transformer,
    token_bt: Tensor,
    kept: StaticCache,
    forbidden_n: Tensor,
    too_early: Tensor,
    end_id: Tensor,
    mask_bt: Tensor | None = None,
) -> tuple[NextToken, StaticCache]:
    """Reads tokens; returns the scores of the next one, at least float32, and the cache."""
    logits_btv, kept = forward_step(model, token_bt, kept, mask_bt, last=True)
    logits_bv = precision.upcast_half(logits_btv[:, -1])
    finite = (logits_bv.amax(dim=1) < torch.inf).all()
    logits_bv = logits_bv.index_fill(1, forbidden_n, -torch.inf)
    ends_v = torch.arange(logits_bv.shape[1], device=logits_bv.device) == end_id
    scores_bv = logits_bv.masked_fill(too_early & ends_v, -torch.inf)
    log_total_b, token_b = logits_bv.logsumexp(dim=1), _likeliest(scores_bv, end_id)
    return NextToken(
        logits_bv, scores_bv, log_total_b, token_b, _log_p(logits_bv, log_total_b, token_b), finite
    ), kept


Step = Callable[..., tuple[NextToken, StaticCache]]


class Reading:
    """A model that has read a target, with one copy of each row per beam.

    step: `next_token`, or a program of it. next: the scores of the next token.
    """

    next: NextToken

    def __init__(self, model: Transformer, step: Step, request: Request, copies: int = 1) -> None:
        self.model, self.step, self.request, self.strategy = model, step, request, request.strategy
        self.rows, memory_bsd = len(request.prefix_bp), None
        if request.source is not None:
            memory_bsd = unpadding.memory(model, Text(request.source, request.source_mask_bs))
        # a cache with room for the prefix and the answer
        length = request.prefix_bp.shape[1] + self.strategy.max_new_tokens
        start = partial(static_cache.start_cache, batch=self.rows, length=length, copies=copies)
        self._start = partial(start, model, memory_bsd, request.source_mask_bs)
        self._cache = self._start()
        fused.pack(model, self.rows * copies)
        device = request.prefix_bp.device
        self._finite = torch.ones((), dtype=torch.bool, device=device)
        self._end_id = torch.tensor(self.strategy.end_id, device=device)
        self._penalises = self.strategy.repetition_penalty != 1 or self.strategy.no_repeat_ngram > 0
        self._turns = _turns(model.config, request)
        prefix_bp = request.prefix_bp.repeat_interleave(copies, dim=0)
        mask_bp = request.prefix_mask_bp.repeat_interleave(copies, dim=0)
        self._target_bt, self._target_mask_bt, self._count = prefix_bp[:, :0], mask_bp[:, :0], 0
        self.read(prefix_bp, mask_bt=mask_bp)

    def read(
        self, token_bt: Tensor, row_b: Tensor | None = None, mask_bt: Tensor | None = None
    ) -> None:
        """Reads these tokens, after replacing row i by row `row_b[i]` if row_b is set."""
        if row_b is not None and self.strategy.beam_size > 1:
            self._cache = static_cache.reorder(self._cache, row_b)
            self._target_bt = self._target_bt[row_b]
            self._target_mask_bt = self._target_mask_bt[row_b]
        if self._penalises or self._turns:
            real_bt = mask_bt
            if real_bt is None:
                real_bt = mask.token_mask(token_bt, self.model.config.padding_id)
            same_bt = token_bt.to(self._target_bt.dtype)
            self._target_bt = torch.cat([self._target_bt, same_bt], dim=1)
            self._target_mask_bt = torch.cat([self._target_mask_bt, real_bt], dim=1)
        read = self._cache["read"]
        if any(0 < read <= turn < read + token_bt.shape[1] for turn in self._turns):
            # All keys rotate by the frequencies of a long text: read the target again.
            self._cache, token_bt, mask_bt = self._start(), self._target_bt, self._target_mask_bt
        known = (self.request.forbidden_n, self.request.too_early_n[self._count], self._end_id)
        self.next, self._cache = self.step(self.model, token_bt, self._cache, *known, mask_bt)
        self._count += 1
        self._finite &= self.next.finite

    def likeliest(self) -> tuple[Tensor, Tensor]:
        """Returns the likeliest token by penalized scores, and its log p."""
        if not self._penalises:
            return self.next.token_b, self.next.log_p_b
        token_b = _likeliest(self.penalised(self.next.scores_bv), self._end_id)
        return token_b, _log_p(self.next.logits_bv, self.next.log_total_b, token_b)

    def drawn(self, uniform_b: Tensor) -> tuple[Tensor, Tensor]:
        """Draws a token from penalized scores by uniform numbers; returns it and its log p."""
        strategy, scores_bv = self.strategy, self.penalised(self.next.scores_bv)
        kept_bv = sampling.unchecked_truncate(
            scores_bv, strategy.temperature, strategy.top_k, strategy.top_p
        )
        drawn_b = sampling.unchecked_draw(kept_bv, uniform_b)
        token_b = _or_end(scores_bv.amax(dim=1), drawn_b, self._end_id)
        return token_b, _log_p(self.next.logits_bv, self.next.log_total_b, token_b)

    def penalised(self, scores_bv: Tensor) -> Tensor:
        """Penalizes tokens and n-grams that the target contains."""
        if not self._penalises:
            return scores_bv
        penalty, size = self.strategy.repetition_penalty, self.strategy.no_repeat_ngram
        return sampling.unchecked_penalise(
            scores_bv, self._target_bt, penalty, size, self._target_mask_bt
        )

    def check(self) -> None:
        """Raises ValueError if a logit was inf or NaN."""
        checks.check_logits(bool(self._finite))


def _turns(config: TransformerConfig, request: Request) -> set[int]:
    """Returns the token counts, including left padding of all rows, at which rotation switches."""
    leading = 0
    if config.rotary_switches and config.position_start == "first_token":
        leading = int(request.prefix_mask_bp.long().argmax(dim=1).min())
    return {leading + length for length in config.rotary_switches}


def _log_p(logits_bv: Tensor, log_total_b: Tensor, token_b: Tensor) -> Tensor:
    return logits_bv.gather(1, token_b[:, None])[:, 0] - log_total_b


def _likeliest(scores_bv: Tensor, end_id: Tensor) -> Tensor:
    score_b, token_b = scores_bv.max(dim=1)
    return _or_end(score_b, token_b, end_id)


def _or_end(score_b: Tensor, token_b: Tensor, end_id: Tensor) -> Tensor:
    """Ends answers that no token may continue."""
    return token_b.masked_fill(score_b == -torch.inf, end_id)


def all_done(done_b: Tensor, step: int) -> bool:
    """Whether all rows are done, as far as the host knows: checks a CPU in every step, but other
    devices rarely, since the check waits for them.
    """
    return bool(done_b.all()) if done_b.device.type == "cpu" or step % 8 == 7 else False
