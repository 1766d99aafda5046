"""What a search is given: checked, and padded to the lengths that graphs are compiled for."""

from typing import NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .lengths import bucket

__all__ = ["Plan", "plan", "request"]


class Plan(NamedTuple):
    """What a graph is made for; everything else is its input."""

    room: int  # tokens of an answer that there is room for
    beams: int
    repetition: bool  # whether tokens of the target become less likely
    no_repeat_ngram: int
    drawn: bool  # whether tokens are drawn, and then from a part of them
    most: int  # what top_k is at most; 0: any token may be among those
    by_probability: bool


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
    config: TransformerConfig, strategy: Strategy, source: np.ndarray, prefix: np.ndarray | None, source_mask_bs: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The inputs of a graph by name. Raises ValueError on ids, masks and prefixes that do not fit."""
    checks.check_source(source.shape, str(source.dtype))
    if prefix is None:
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, prefix[..., -1:].tolist())
    checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    _check_ids(source, config.source_vocabulary)
    if source_mask_bs is None:
        source_mask_bs = _token_mask(source, config.padding_id)
    checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), source.shape[:2])
    _check_ids(prefix, config.target_vocabulary)
    longer = bucket(source.shape[1]) - source.shape[1]
    before, given = prefix[:, :-1], prefix.shape[1] - 1
    earlier = bucket(given) - given if given else 0
    return {
        "source": np.pad(source.astype(np.int32), ((0, 0), (0, longer))),
        "source_mask_bs": np.pad(source_mask_bs, ((0, 0), (0, longer))),
        "before": np.pad(before.astype(np.int32), ((0, 0), (earlier, 0))),  # the prefix but for its last token
        "before_mask_bt": np.pad(_token_mask(before, config.padding_id), ((0, 0), (earlier, 0))),
        "last_b1": prefix[:, -1:].astype(np.int32),
        **_numbers(config, strategy),
    }


def _numbers(config: TransformerConfig, strategy: Strategy) -> dict[str, np.ndarray]:
    length_n = np.minimum(np.arange(1, bucket(strategy.max_new_tokens) + 1), strategy.max_new_tokens)
    integers = {
        "end_id": strategy.end_id,
        "filler": strategy.pad_id(config),
        "max_new_tokens": strategy.max_new_tokens,
        "min_new_tokens": strategy.min_new_tokens,
        "top_k": strategy.top_k,
    }
    return {
        **{name: np.array(value, np.int32) for name, value in integers.items()},
        **{name: np.array(getattr(strategy, name)) for name in ("repetition_penalty", "temperature", "top_p", "early_stop")},
        "barred_v": np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        "length_penalty_n": ((5 + length_n) / 6) ** strategy.alpha,
    }


def _token_mask(token: np.ndarray, padding_id: int | None) -> np.ndarray:
    return np.ones(token.shape[:2], bool) if padding_id is None else token != padding_id


def _check_ids(token: np.ndarray, vocabulary: int) -> None:
    bounds = (int(token.min()), int(token.max())) if token.dtype.kind in "iu" and token.size else ()
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary, *bounds)
