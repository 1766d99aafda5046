"""What a search is given: checked, and padded to the lengths that graphs are compiled for."""

from typing import Any, NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .. import mask
from ..framework import id_bounds

__all__ = ["Plan", "Request", "bucket", "plan", "request"]

SHORTEST, LONGEST = 16, 64


class Plan(NamedTuple):
    """What a graph is made for; everything else is its input."""

    room: int  # tokens of an answer that there is room for
    beams: int
    repetition: bool  # whether tokens of the target become less likely
    no_repeat_ngram: int
    drawn: bool  # whether tokens are drawn, and then from a part of them
    most: int  # what top_k is at most; 0: any token may be among those
    by_probability: bool


class Request(NamedTuple):
    """The inputs of a graph: arrays, or tensors."""

    source: Any  # None of a decoder alone, and its mask
    source_mask_bs: Any
    before: Any  # the prefix but for its last token, `b p`
    before_mask_bt: Any
    start: Any  # how many of these fill up its length
    last_b1: Any
    end_id: Any
    pad_id: Any  # what follows the end
    max_new_tokens: Any
    min_new_tokens: Any
    top_k: Any
    repetition_penalty: Any
    temperature: Any
    top_p: Any
    early_stop: Any
    forbidden_v: Any  # the ids that are no part of any answer
    length_penalty_n: Any
    uniform_bn: Any = None


def bucket(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 192, ... that is not shorter, so that few lengths serve all."""
    if length > LONGEST:
        return -(-length // LONGEST) * LONGEST
    return max(SHORTEST, 1 << (length - 1).bit_length())


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """The plan of a search with so many beams, or of sampling."""
    drawn = drawn and strategy.temperature > 0
    return Plan(
        room=bucket(strategy.max_new_tokens),
        beams=beams,
        repetition=strategy.repetition_penalty != 1,
        no_repeat_ngram=strategy.no_repeat_ngram,
        drawn=drawn,
        most=bucket(strategy.top_k) if drawn and strategy.top_k else 0,
        by_probability=drawn and strategy.top_p < 1,
    )


def request(
    config: TransformerConfig,
    strategy: Strategy,
    source: np.ndarray | None,
    prefix: np.ndarray | None,
    source_mask_bs: np.ndarray | None,
    prefix_mask_bp: np.ndarray | None,
    uniform_bn: np.ndarray | None = None,
) -> Request:
    """The inputs of a graph. Raises ValueError on ids, masks and prefixes that do not fit."""
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=source_mask_bs)
    if source is not None:
        checks.check_source(source.shape, str(source.dtype))
    prefix, prefix_mask_bp = _prefix(config, strategy, source, prefix, prefix_mask_bp)
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
        source, source_mask_bs = _source(config, source, source_mask_bs)
    before, room = prefix[:, :-1], bucket(strategy.max_new_tokens)
    if uniform_bn is not None:
        bounds = uniform_bn.min(initial=0), uniform_bn.max(initial=0)
        checks.check_uniform(uniform_bn.shape, (len(prefix), strategy.max_new_tokens), *bounds)
    start = bucket(before.shape[1]) - before.shape[1] if before.size else 0
    left = (0, 0), (start, 0)
    return Request(
        source=source,
        source_mask_bs=None if source is None else source_mask_bs,
        before=np.pad(before.astype(np.int32), left),
        before_mask_bt=np.pad(prefix_mask_bp[:, :-1], left),
        start=np.int32(start),
        last_b1=prefix[:, -1:].astype(np.int32),
        pad_id=np.int32(strategy.pad_id(config)),
        forbidden_v=np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        **{
            name: np.int32(getattr(strategy, name))
            for name in ("end_id", "max_new_tokens", "min_new_tokens", "top_k")
        },
        **{
            name: np.array(getattr(strategy, name))
            for name in ("repetition_penalty", "temperature", "top_p", "early_stop")
        },
        length_penalty_n=((5 + np.minimum(np.arange(1, room + 1), strategy.max_new_tokens)) / 6)
        ** strategy.alpha,
        uniform_bn=None
        if uniform_bn is None
        else np.pad(uniform_bn.astype(np.float64), ((0, 0), (0, room - uniform_bn.shape[1]))),
    )


def _source(
    config: TransformerConfig, source: np.ndarray, mask_bs: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The source and its mask, padded."""
    checks.check_tokens(
        "token", source.shape, str(source.dtype), config.source_vocabulary, *id_bounds(source)
    )
    checks.check_length(source.shape[1], config.max_positions)
    mask_bs = np.asarray(mask.token_mask(source, config.padding_id)) if mask_bs is None else mask_bs
    checks.check_token_mask("source mask", mask_bs.shape, str(mask_bs.dtype), source.shape[:2])
    length = bucket(source.shape[1])
    right = (0, 0), (0, min(length, config.max_positions or length) - source.shape[1])
    return np.pad(source.astype(np.int32), right), np.pad(mask_bs, right)


def _prefix(
    config: TransformerConfig,
    strategy: Strategy,
    source: Any,
    prefix: Any,
    mask_bp: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """What every answer follows, by default the start token, and which of its tokens are real."""
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    if prefix is None:
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    if mask_bp is not None:
        checks.check_token_mask("prefix mask", mask_bp.shape, str(mask_bp.dtype), prefix.shape)
    last = () if mask_bp is None else mask_bp[:, -1].tolist()
    checks.check_prefix(
        prefix.shape, str(prefix.dtype), config.padding_id, prefix[..., -1:].tolist(), last
    )
    checks.check_tokens(
        "token", prefix.shape, str(prefix.dtype), config.target_vocabulary, *id_bounds(prefix)
    )
    checks.check_length(prefix.shape[1] + strategy.max_new_tokens - 1, config.max_positions)
    return prefix, np.asarray(
        mask.token_mask(prefix, config.padding_id)
    ) if mask_bp is None else mask_bp
