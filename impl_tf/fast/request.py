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

    source: Any
    source_mask_bs: Any
    before: Any  # the prefix but for its last token, `b p`
    before_mask_bt: Any
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
    source: np.ndarray,
    prefix: np.ndarray | None,
    source_mask_bs: np.ndarray | None,
    uniform_bn: np.ndarray | None = None,
) -> Request:
    """The inputs of a graph. Raises ValueError on ids, masks and prefixes that do not fit."""
    checks.check_source(source.shape, str(source.dtype))
    if prefix is None:
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, prefix[..., -1:].tolist())
    checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    for token, vocabulary in ((source, config.source_vocabulary), (prefix, config.target_vocabulary)):
        checks.check_tokens("token", token.shape, str(token.dtype), vocabulary, *id_bounds(token))
    if source_mask_bs is None:
        source_mask_bs = np.asarray(mask.token_mask(source, config.padding_id))
    checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), source.shape[:2])
    before, room = prefix[:, :-1], bucket(strategy.max_new_tokens)
    right = (0, 0), (0, bucket(source.shape[1]) - source.shape[1])
    left = (0, 0), (bucket(before.shape[1]) - before.shape[1] if before.size else 0, 0)
    return Request(
        source=np.pad(source.astype(np.int32), right),
        source_mask_bs=np.pad(source_mask_bs, right),
        before=np.pad(before.astype(np.int32), left),
        before_mask_bt=np.pad(mask.token_mask(before, config.padding_id), left),
        last_b1=prefix[:, -1:].astype(np.int32),
        pad_id=np.int32(strategy.pad_id(config)),
        forbidden_v=np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        **{name: np.int32(getattr(strategy, name)) for name in ("end_id", "max_new_tokens", "min_new_tokens", "top_k")},
        **{name: np.array(getattr(strategy, name)) for name in ("repetition_penalty", "temperature", "top_p", "early_stop")},
        length_penalty_n=((5 + np.minimum(np.arange(1, room + 1), strategy.max_new_tokens)) / 6) ** strategy.alpha,
        uniform_bn=None if uniform_bn is None else np.pad(uniform_bn.astype(np.float64), ((0, 0), (0, room - uniform_bn.shape[1]))),
    )
