"""The loops of the searches: nothing is asked of the device that a step does not need."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
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
    token_b is the likeliest and log_p_b its `log p`. log_total_b: what is subtracted from logits to give `log p`. fit: whether no logit was
    inf or NaN.
    """

    logits_bv: Tensor
    scores_bv: Tensor
    log_total_b: Tensor
    token_b: Tensor
    log_p_b: Tensor
    fit: Tensor


def next_token(
    model: Transformer,
    token_bt: Tensor,
    kept: Cache,
    forbidden_n: Tensor,
    too_early: Tensor,
    end_id: Tensor,
    mask_bt: Tensor | None = None,
) -> tuple[NextToken, Cache]:
    """One step, and what is known after it; the scores are at least float32."""
    logits_btv, kept = forward_step(model, token_bt, kept, mask_bt, last=True)
    logits_bv = precision.upcast_half(logits_btv[:, -1])
    fit = (logits_bv.amax(dim=1) < torch.inf).all()
    logits_bv = logits_bv.index_fill(1, forbidden_n, -torch.inf)
    ends_v = torch.arange(logits_bv.shape[1], device=logits_bv.device) == end_id
    scores_bv = logits_bv.masked_fill(too_early & ends_v, -torch.inf)
    log_total_b, token_b = logits_bv.logsumexp(dim=1), _likeliest(scores_bv, end_id)
    return NextToken(
        logits_bv, scores_bv, log_total_b, token_b, _log_p(logits_bv, log_total_b, token_b), fit
    ), kept


class Reading:
    """The model that has read a target, of each row as many copies as it has beams.

    step: `next_token`, or a graph of it. next: what is known of the next token.
    """

    next: NextToken

    def __init__(
        self, model: Transformer, step: Callable[..., Any], request: Request, copies: int = 1
    ) -> None:
        self.model, self.step, self.request, self.strategy = model, step, request, request.strategy
        memory_bsd = (
            None if request.source is None else model.memory(request.source, request.source_mask_bs)
        )
        (self.rows, length), device = request.prefix_bp.shape, request.prefix_bp.device
        room = {"length": length + self.strategy.max_new_tokens, "copies": copies}
        self._cache = cache.start_cache(
            model, memory_bsd, request.source_mask_bs, self.rows, **room
        )
        self._fit = torch.ones((), dtype=torch.bool, device=device)
        self._end_id = torch.tensor(self.strategy.end_id, device=device)
        self._penalises = self.strategy.repetition_penalty != 1 or self.strategy.no_repeat_ngram > 0
        prefix_bp, mask_bp = (
            x.repeat_interleave(copies, dim=0) for x in (request.prefix_bp, request.prefix_mask_bp)
        )
        self._target_bt, self._target_mask_bt, self._count = prefix_bp[:, :0], mask_bp[:, :0], 0
        self.read(prefix_bp, mask_bt=mask_bp)

    def read(
        self, token_bt: Tensor, row_b: Tensor | None = None, mask_bt: Tensor | None = None
    ) -> None:
        """Goes on with these tokens; before that, row i becomes what row `row_b[i]` is."""
        if row_b is not None and self.strategy.beam_size > 1:
            self._cache = cache.reorder(self._cache, row_b)
            self._target_bt, self._target_mask_bt = (
                self._target_bt[row_b],
                self._target_mask_bt[row_b],
            )
        known = (self.request.forbidden_n, self.request.too_early_n[self._count], self._end_id)
        self.next, self._cache = self.step(self.model, token_bt, self._cache, *known, mask_bt)
        self._count += 1
        self._fit &= self.next.fit
        if self._penalises:
            mask_bt = (
                mask.token_mask(token_bt, self.model.config.padding_id)
                if mask_bt is None
                else mask_bt
            )
            self._target_bt = torch.cat(
                [self._target_bt, token_bt.to(self._target_bt.dtype)], dim=1
            )
            self._target_mask_bt = torch.cat([self._target_mask_bt, mask_bt], dim=1)

    def likeliest(self) -> tuple[Tensor, Tensor]:
        """The likeliest token by its penalised score, and its log p."""
        if not self._penalises:
            return self.next.token_b, self.next.log_p_b
        return self._with_log_p(_likeliest(self.penalised(self.next.scores_bv), self._end_id))

    def drawn(self, uniform_b: Tensor) -> tuple[Tensor, Tensor]:
        """The token that these uniform numbers draw, by penalised scores, and its log p."""
        strategy, scores_bv = self.strategy, self.penalised(self.next.scores_bv)
        kept_bv = sampling.truncate(
            scores_bv, strategy.temperature, strategy.top_k, strategy.top_p, checked=True
        )
        return self._with_log_p(
            _or_end(
                scores_bv.amax(dim=1), sampling.draw(kept_bv, uniform_b, checked=True), self._end_id
            )
        )

    def _with_log_p(self, token_b: Tensor) -> tuple[Tensor, Tensor]:
        return token_b, _log_p(self.next.logits_bv, self.next.log_total_b, token_b)

    def penalised(self, scores_bv: Tensor) -> Tensor:
        strategy = self.strategy
        if not self._penalises:
            return scores_bv
        held = (
            self._target_bt,
            strategy.repetition_penalty,
            strategy.no_repeat_ngram,
            self._target_mask_bt,
        )
        return sampling.penalise(scores_bv, *held, checked=True)

    def check(self) -> None:
        """Raises ValueError where a logit was inf or NaN."""
        checks.check_logits(bool(self._fit))


def one_by_one(reading: Reading, uniform_bn: Tensor | None = None) -> dict[str, Tensor]:
    """One answer a row, token by token: the likeliest ones, or those that the uniform numbers draw."""
    strategy, pad_id, first = reading.strategy, reading.request.pad_id, reading.next
    done_b = torch.zeros_like(first.token_b, dtype=torch.bool)
    tokens, log_ps = [], []
    for step in range(strategy.max_new_tokens):
        token_b, log_p_b = (
            reading.likeliest() if uniform_bn is None else reading.drawn(uniform_bn[:, step])
        )
        tokens.append(token_b.masked_fill_(done_b, pad_id))
        log_ps.append(log_p_b.masked_fill_(done_b, 0))
        done_b |= token_b == strategy.end_id
        if step + 1 == strategy.max_new_tokens or _all_done(done_b, step):
            break
        reading.read(token_b[:, None])
    reading.check()
    rest = 0, strategy.max_new_tokens - len(tokens)
    token_bn, log_p_bn = (
        F.pad(torch.stack(tokens, dim=1), rest, value=pad_id),
        F.pad(torch.stack(log_ps, dim=1), rest),
    )
    return {"token_bn": token_bn, "log_p_bn": log_p_bn}


def beam_search(reading: Reading) -> dict[str, Tensor]:
    """The n best hypotheses of each row; the reading has as many copies of it as there are beams."""
    strategy, log_total_b = reading.strategy, reading.next.log_total_b
    rows = reading.rows
    beams = Beams(strategy, rows, log_total_b.dtype, log_total_b.device)
    for step in range(strategy.max_new_tokens):
        scores_bv = reading.penalised(reading.next.scores_bv - reading.next.log_total_b[:, None])
        token_bt, row_b = beams.advance(scores_bv.unflatten(0, (rows, strategy.beam_size)))
        if step + 1 == strategy.max_new_tokens or _all_done(beams.done_b, step):
            break
        reading.read(token_bt, row_b)
    reading.check()
    return beams.n_best(reading.request.pad_id)


def _log_p(logits_bv: Tensor, log_total_b: Tensor, token_b: Tensor) -> Tensor:
    return logits_bv.gather(1, token_b[:, None])[:, 0] - log_total_b


def _likeliest(scores_bv: Tensor, end_id: Tensor) -> Tensor:
    return _or_end(*scores_bv.max(dim=1), end_id)


def _or_end(score_b: Tensor, token_b: Tensor, end_id: Tensor) -> Tensor:
    """Where nothing may follow the answer ends."""
    return token_b.masked_fill(score_b == -torch.inf, end_id)


def _all_done(done_b: Tensor, step: int) -> bool:
    """Whether all rows are done, as far as the host knows: a CPU says so at once, while another device is not waited for at each step."""
    return bool(done_b.all()) if done_b.device.type == "cpu" or step % 8 == 7 else False
