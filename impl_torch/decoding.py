"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import cache, dtypes, mask, sampling
from .beams import Beams
from .compiled import compiled_step, graphs
from .embedding import check_ids
from .fused import fused
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]


class Searcher:
    """The searches over a snapshot of a model's weights, which later changes of the model leave alone.

    dtype: of the snapshot; by default the model's. compiled: a step of one token is a graph, which serves every length and every value.
    That pays for many searches: the first takes seconds, or most of a minute where the graph holds large kernels (`fused.pack`).
    The device is asked whether all rows are done once in a while, and whether a logit was inf or NaN once at the end.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None, compiled: bool = False) -> None:
        self.model = fused(model, dtype)
        self.step: Callable[..., tuple[_Next, cache.Cache]] = compiled_step(_read_on) if compiled else _read_on

    @torch.inference_mode()
    @graphs()
    def greedy_search(
        self, source: Tensor, strategy: Options, prefix: Tensor | None = None, source_mask_bs: Tensor | None = None
    ) -> dict[str, Tensor]:
        strategy = Strategy.of(strategy, self.model.config)
        return self._one_by_one(source, strategy, prefix, source_mask_bs, lambda reading, _: reading.likeliest())

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
        strategy = Strategy.of(strategy, self.model.config)
        bounds = torch.stack(uniform_bn.aminmax()).tolist() if uniform_bn.numel() else ()
        checks.check_uniform(uniform_bn.shape, (len(source), strategy.max_new_tokens), *bounds)

        def choose(reading: _Reading, step: int) -> Tensor:
            if not strategy.temperature:
                return reading.likeliest()
            scores_bv = reading.penalised(reading.next.scores_bv)
            kept_bv = sampling.truncated(scores_bv, strategy.temperature, strategy.top_k, strategy.top_p)
            return _or_end(scores_bv.amax(dim=1), sampling.drawn(kept_bv, uniform_bn[:, step]), strategy.end_id)

        return self._one_by_one(source, strategy, prefix, source_mask_bs, choose)

    @torch.inference_mode()
    @graphs()
    def beam_search(
        self, source: Tensor, strategy: Options, prefix: Tensor | None = None, source_mask_bs: Tensor | None = None
    ) -> dict[str, Tensor]:
        strategy = Strategy.of(strategy, self.model.config)
        reading = _Reading(self, strategy, source, prefix, source_mask_bs, strategy.beam_size)
        beams = Beams(strategy, len(source), reading.next.log_total_b.dtype, source.device)
        for step in range(strategy.max_new_tokens):
            scores_bv = reading.penalised(reading.next.scores_bv - reading.next.log_total_b[:, None])
            token_bt, row_b = beams.advance(scores_bv.unflatten(0, (len(source), strategy.beam_size)))
            if step + 1 == strategy.max_new_tokens or _all(beams.done_b, step):
                break
            reading.read(token_bt, row_b)
        reading.check()
        return beams.n_best(strategy.pad_id(self.model.config))

    def _one_by_one(
        self,
        source: Tensor,
        strategy: Strategy,
        prefix: Tensor | None,
        source_mask_bs: Tensor | None,
        choose: Callable[["_Reading", int], Tensor],
    ) -> dict[str, Tensor]:
        """One answer a row, token by token. choose: (what has been read, step) -> tokens `b`."""
        reading = _Reading(self, strategy, source, prefix, source_mask_bs)
        filler, shape = strategy.pad_id(self.model.config), (len(source), strategy.max_new_tokens)
        token_bn = torch.full(shape, filler, device=source.device)
        log_p_bn = torch.zeros(shape, dtype=reading.next.log_total_b.dtype, device=source.device)
        done_b = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        for step in range(strategy.max_new_tokens):
            token_b = choose(reading, step).masked_fill_(done_b, filler)
            token_bn[:, step] = token_b
            log_p_bn[:, step] = reading.log_p(token_b).masked_fill_(done_b, 0)
            done_b |= token_b == strategy.end_id
            if step + 1 == strategy.max_new_tokens or _all(done_b, step):
                break
            reading.read(token_b[:, None])
        reading.check()
        return {"token_bn": token_bn, "log_p_bn": log_p_bn}


class _Reading:
    """The model that has read a target, of each row as many copies as it has beams."""

    def __init__(
        self, searcher: Searcher, strategy: Strategy, source: Tensor, prefix: Tensor | None, source_mask_bs: Tensor | None, copies: int = 1
    ) -> None:
        self.model, self.step, self.strategy, config = searcher.model, searcher.step, strategy, searcher.model.config
        checks.check_source(source.shape, dtypes.name(source.dtype))
        if prefix is None:
            prefix = source.new_full((len(source), 1), strategy.start_id)
        checks.check_prefix(prefix.shape, dtypes.name(prefix.dtype), config.padding_id, prefix[..., -1:].tolist())
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
        check_ids((source, config.source_vocabulary), (prefix, config.target_vocabulary))
        if source_mask_bs is None:
            source_mask_bs = mask.token_mask(source, config.padding_id)
        memory_bsd = self.model.encode(source, source_mask_bs)
        length = prefix.shape[1] + strategy.max_new_tokens
        self._cache = cache.start_cache(self.model, memory_bsd, source_mask_bs, length=length, copies=copies)
        self._barred_n = torch.tensor(strategy.forbidden_ids(config), dtype=torch.int64, device=source.device)
        self._early_n = torch.arange(strategy.max_new_tokens, device=source.device) < strategy.min_new_tokens
        self._fit = torch.ones((), dtype=torch.bool, device=source.device)
        self._penalises = strategy.repetition_penalty != 1 or strategy.no_repeat_ngram > 0
        prefix = prefix.repeat_interleave(copies, dim=0)
        self._target_bt, self._count = prefix[:, :0], 0
        self.read(prefix)

    def read(self, token_bt: Tensor, row_b: Tensor | None = None) -> None:
        """Goes on with these tokens; before that, row i becomes what row `row_b[i]` is."""
        if row_b is not None and self.strategy.beam_size > 1:
            self._cache, self._target_bt = cache.reorder(self._cache, row_b), self._target_bt[row_b]
        early = self._early_n[self._count]
        self.next, self._cache = self.step(self.model, token_bt, self._cache, self._barred_n, early, self.strategy.end_id)
        self._count += 1
        self._fit &= self.next.fit
        if self._penalises:
            self._target_bt = torch.cat([self._target_bt, token_bt.to(self._target_bt.dtype)], dim=1)

    def log_p(self, token_b: Tensor) -> Tensor:
        return self.next.logits_bv.gather(1, token_b[:, None])[:, 0] - self.next.log_total_b

    def likeliest(self) -> Tensor:
        """The likeliest token by its penalised score."""
        if not self._penalises:
            return self.next.token_b
        return _likeliest(self.penalised(self.next.scores_bv), self.strategy.end_id)

    def penalised(self, scores_bv: Tensor) -> Tensor:
        strategy = self.strategy
        if not self._penalises:
            return scores_bv
        mask_bt = mask.token_mask(self._target_bt, self.model.config.padding_id)
        return sampling.penalised(scores_bv, self._target_bt, strategy.repetition_penalty, strategy.no_repeat_ngram, mask_bt)

    def check(self) -> None:
        """Raises ValueError where a logit was inf or NaN."""
        checks.check_logits(bool(self._fit))


class _Next(NamedTuple):
    """What is known of the next token.

    logits_bv: -inf for what no answer holds. scores_bv: the same for the end token too, where an answer may not end yet; without it
    token_b is the likeliest. log_total_b: what is subtracted from logits to give `log p`. fit: whether no logit was inf or NaN.
    """

    logits_bv: Tensor
    scores_bv: Tensor
    log_total_b: Tensor
    token_b: Tensor
    fit: Tensor


def _read_on(
    model: Transformer, token_bt: Tensor, kept: cache.Cache, barred_n: Tensor, early: Tensor, end_id: int
) -> tuple[_Next, cache.Cache]:
    logits_btv, kept = cache.read_on(model, token_bt, kept, last=True)
    logits_bv = dtypes.widen(logits_btv[:, -1])
    fit = (logits_bv.amax(dim=1) < torch.inf).all()
    logits_bv = logits_bv.index_fill(1, barred_n, -torch.inf)
    ends_v = torch.arange(logits_bv.shape[1], device=logits_bv.device) == end_id
    scores_bv = logits_bv.masked_fill(early & ends_v, -torch.inf)
    return _Next(logits_bv, scores_bv, logits_bv.logsumexp(dim=1), _likeliest(scores_bv, end_id), fit), kept


def _likeliest(scores_bv: Tensor, end_id: int) -> Tensor:
    return _or_end(*scores_bv.max(dim=1), end_id)


def _or_end(score_b: Tensor, token_b: Tensor, end_id: int) -> Tensor:
    """Where nothing may follow the answer ends."""
    return token_b.masked_fill(score_b == -torch.inf, end_id)


def _all(done_b: Tensor, step: int) -> bool:
    """Whether all rows are done, as far as the host knows: a CPU says so at once, while another device is not waited for at each step."""
    return bool(done_b.all()) if done_b.device.type == "cpu" or step % 8 == 7 else False
