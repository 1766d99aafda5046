"""The loops of the searches: nothing is asked of the device that a step does not need."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_numpy import checks

from .. import cache, mask, precision, sampling
from ..transformer import Transformer
from .beams import Beams
from .cache import Cache, forward_step
from .request import Request

__all__ = ["NextToken", "Reading", "beam_search", "next_token", "one_by_one"]


class NextToken(NamedTuple):
    """What is known of the next token.

    logits_bv: -inf for what no answer holds. scores_bv: the same for the end token too, where an answer may not end yet; without it
    token_b is the likeliest. log_total_b: what is subtracted from logits to give `log p`. fit: whether no logit was inf or NaN.
    """

    logits_bv: Tensor
    scores_bv: Tensor
    log_total_b: Tensor
    token_b: Tensor
    fit: Tensor


def next_token(
    model: Transformer,
    token_bt: Tensor,
    kept: Cache,
    forbidden_n: Tensor,
    too_early: Tensor,
    end_id: int,
    mask_bt: Tensor | None = None,
) -> tuple[NextToken, Cache]:
    """One step, and what is known after it; the scores are at least float32."""
    logits_btv, kept = forward_step(model, token_bt, kept, mask_bt, last=True)
    logits_bv = precision.upcast_half(logits_btv[:, -1])
    fit = (logits_bv.amax(dim=1) < torch.inf).all()
    logits_bv = logits_bv.index_fill(1, forbidden_n, -torch.inf)
    ends_v = torch.arange(logits_bv.shape[1], device=logits_bv.device) == end_id
    scores_bv = logits_bv.masked_fill(too_early & ends_v, -torch.inf)
    return NextToken(logits_bv, scores_bv, logits_bv.logsumexp(dim=1), _likeliest(scores_bv, end_id), fit), kept


class Reading:
    """The model that has read a target, of each row as many copies as it has beams.

    step: `next_token`, or a graph of it. next: what is known of the next token.
    """

    next: NextToken

    def __init__(self, model: Transformer, step: Callable[..., Any], request: Request, copies: int = 1) -> None:
        self.model, self.step, self.request, self.strategy = model, step, request, request.strategy
        memory_bsd = None if request.source is None else model.encode(request.source, request.source_mask_bs, checked=True)
        (self.rows, length), device = request.prefix_bp.shape, request.prefix_bp.device
        room = {"length": length + self.strategy.max_new_tokens, "copies": copies}
        self._cache = cache.start_cache(model, memory_bsd, request.source_mask_bs, self.rows, **room)
        self._fit = torch.ones((), dtype=torch.bool, device=device)
        self._penalises = self.strategy.repetition_penalty != 1 or self.strategy.no_repeat_ngram > 0
        prefix_bp, mask_bp = (x.repeat_interleave(copies, dim=0) for x in (request.prefix_bp, request.prefix_mask_bp))
        self._target_bt, self._target_mask_bt, self._count = prefix_bp[:, :0], mask_bp[:, :0], 0
        self.read(prefix_bp, mask_bt=mask_bp)

    def read(self, token_bt: Tensor, row_b: Tensor | None = None, mask_bt: Tensor | None = None) -> None:
        """Goes on with these tokens; before that, row i becomes what row `row_b[i]` is."""
        checks.check_length(self._cache["read"] + token_bt.shape[1], self.model.config.max_positions)
        if row_b is not None and self.strategy.beam_size > 1:
            self._cache = cache.reorder(self._cache, row_b)
            self._target_bt, self._target_mask_bt = self._target_bt[row_b], self._target_mask_bt[row_b]
        known = (self.request.forbidden_n, self.request.too_early_n[self._count], self.strategy.end_id)
        self.next, self._cache = self.step(self.model, token_bt, self._cache, *known, mask_bt)
        self._count += 1
        self._fit &= self.next.fit
        if self._penalises:
            mask_bt = mask.token_mask(token_bt, self.model.config.padding_id) if mask_bt is None else mask_bt
            self._target_bt = torch.cat([self._target_bt, token_bt.to(self._target_bt.dtype)], dim=1)
            self._target_mask_bt = torch.cat([self._target_mask_bt, mask_bt], dim=1)

    @property
    def full(self) -> bool:
        """Whether no token more has a position."""
        return self._cache["read"] == self.model.config.max_positions

    def log_p(self, token_b: Tensor) -> Tensor:
        return self.next.logits_bv.gather(1, token_b[:, None])[:, 0] - self.next.log_total_b

    def likeliest(self) -> Tensor:
        """The likeliest token by its penalised score."""
        if not self._penalises:
            return self.next.token_b
        return _likeliest(self.penalised(self.next.scores_bv), self.strategy.end_id)

    def drawn(self, uniform_b: Tensor) -> Tensor:
        """The token that these uniform numbers draw, by penalised scores."""
        strategy, scores_bv = self.strategy, self.penalised(self.next.scores_bv)
        kept_bv = sampling.truncate(scores_bv, strategy.temperature, strategy.top_k, strategy.top_p, checked=True)
        return _or_end(scores_bv.amax(dim=1), sampling.draw(kept_bv, uniform_b, checked=True), strategy.end_id)

    def penalised(self, scores_bv: Tensor) -> Tensor:
        strategy = self.strategy
        if not self._penalises:
            return scores_bv
        held = (self._target_bt, strategy.repetition_penalty, strategy.no_repeat_ngram, self._target_mask_bt)
        return sampling.penalise(scores_bv, *held, checked=True)

    def check(self) -> None:
        """Raises ValueError where a logit was inf or NaN."""
        checks.check_logits(bool(self._fit))


def one_by_one(reading: Reading, uniform_bn: Tensor | None = None) -> dict[str, Tensor]:
    """One answer a row, token by token: the likeliest ones, or those that the uniform numbers draw."""
    strategy, pad_id, first = reading.strategy, reading.request.pad_id, reading.next
    rows, device = len(first.log_total_b), first.log_total_b.device
    token_bn = torch.full((rows, strategy.max_new_tokens), pad_id, device=device)
    log_p_bn = torch.zeros(token_bn.shape, dtype=first.log_total_b.dtype, device=device)
    done_b = torch.zeros(rows, dtype=torch.bool, device=device)
    for step in range(strategy.max_new_tokens):
        token_b = reading.likeliest() if uniform_bn is None else reading.drawn(uniform_bn[:, step])
        token_b = token_b.masked_fill_(done_b, pad_id)
        token_bn[:, step] = token_b
        log_p_bn[:, step] = reading.log_p(token_b).masked_fill_(done_b, 0)
        done_b |= token_b == strategy.end_id
        if step + 1 == strategy.max_new_tokens or _all_done(done_b, step, reading.full):
            break
        reading.read(token_b[:, None])
    reading.check()
    return {"token_bn": token_bn, "log_p_bn": log_p_bn}


def beam_search(reading: Reading) -> dict[str, Tensor]:
    """The n best hypotheses of each row; the reading has as many copies of it as there are beams."""
    strategy, log_total_b = reading.strategy, reading.next.log_total_b
    rows = reading.rows
    beams = Beams(strategy, rows, log_total_b.dtype, log_total_b.device)
    for step in range(strategy.max_new_tokens):
        scores_bv = reading.penalised(reading.next.scores_bv - reading.next.log_total_b[:, None])
        token_bt, row_b = beams.advance(scores_bv.unflatten(0, (rows, strategy.beam_size)))
        if step + 1 == strategy.max_new_tokens or _all_done(beams.done_b, step, reading.full):
            break
        reading.read(token_bt, row_b)
    reading.check()
    return beams.n_best(reading.request.pad_id)


def _likeliest(scores_bv: Tensor, end_id: int) -> Tensor:
    return _or_end(*scores_bv.max(dim=1), end_id)


def _or_end(score_b: Tensor, token_b: Tensor, end_id: int) -> Tensor:
    """Where nothing may follow the answer ends."""
    return token_b.masked_fill(score_b == -torch.inf, end_id)


def _all_done(done_b: Tensor, step: int, must_know: bool) -> bool:
    """Whether all rows are done, as far as the host knows: a CPU says so at once, while another device is not waited for at each step."""
    return bool(done_b.all()) if done_b.device.type == "cpu" or step % 8 == 7 or must_know else False
