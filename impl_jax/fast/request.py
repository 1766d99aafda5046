"""What a search is given: checked, and padded to the lengths that programs are compiled for."""

from typing import Any, NamedTuple

import jax
import numpy as np

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

__all__ = ["Plan", "Request", "batch_of", "bucket", "plan", "request"]


class Plan(NamedTuple):
    """What a program is made for; everything else is its argument."""

    room: int  # tokens of an answer that there is room for
    beams: int
    repetition: bool  # whether tokens of the target become less likely
    no_repeat_ngram: int
    top_k: int  # 0 where nothing is drawn
    by_probability: bool


class Request(NamedTuple):
    """The arguments of a search, padded: the source, None of a decoder alone, on its right, the prefix on its left; no mask has padding.

    max_new_tokens: the most tokens of an answer, for which the plan gives the room. length_penalty_n: of answers of 0, 1, ... tokens.
    """

    source: Any
    source_mask_bs: Any
    prefix_bp: Any
    prefix_mask_bp: Any
    end_id: Any
    pad_id: Any
    forbidden_v: Any
    max_new_tokens: Any
    min_new_tokens: Any
    repetition_penalty: Any
    temperature: Any
    top_p: Any
    early_stop: Any
    length_penalty_n: Any
    uniform_bn: Any = None  # None: nothing is drawn


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """The plan of a search with so many beams, or of sampling."""
    return Plan(
        room=bucket(strategy.max_new_tokens),
        beams=beams,
        repetition=strategy.repetition_penalty != 1,
        no_repeat_ngram=strategy.no_repeat_ngram,
        top_k=strategy.top_k if drawn else 0,
        by_probability=drawn and strategy.top_p < 1,
    )


def bucket(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 192, ... that is not shorter, so that programs of few lengths serve all."""
    return -(-length // 64) * 64 if length > 64 else max(16, 1 << (length - 1).bit_length())


def batch_of(
    config: TransformerConfig, strategy: Strategy, source: Any, prefix: Any, source_mask_bs: Any
) -> int:
    """The number of rows. Raises ValueError where a source or a prefix that is needed is missing, and on a source of a decoder alone."""
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=source_mask_bs)
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    return len(prefix if source is None else source)


def request(
    config: TransformerConfig,
    strategy: Strategy,
    source: Any,
    prefix: Any,
    source_mask_bs: Any,
    prefix_mask_bp: Any,
    uniform_bn: Any = None,
) -> Request:
    """The arguments of a program, for ids that are checked. Raises ValueError on masks, prefixes and lengths that do not fit."""
    batch_of(config, strategy, source, prefix, source_mask_bs)
    if source is not None:
        source, source_mask_bs = _source(config, source, source_mask_bs)
    prefix, prefix_mask_bp = _prefix(config, strategy, source, prefix, prefix_mask_bp)
    checks.check_length(
        prefix.shape[1] + strategy.max_new_tokens - 1, config.max_positions
    )  # the last token of an answer is not read
    room = bucket(strategy.max_new_tokens)
    # A prefix of one token stays alone, as does one whose positions would count the padding.
    alone = prefix.shape[1] == 1 or config.position_start == "row"
    earlier = 0 if alone else bucket(prefix.shape[1]) - prefix.shape[1], 0
    return Request(
        source=source,
        source_mask_bs=source_mask_bs,
        prefix_bp=_padded(prefix, 0, earlier),
        prefix_mask_bp=_padded(prefix_mask_bp, False, earlier),
        pad_id=np.int32(strategy.pad_id(config)),
        forbidden_v=np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        **{
            name: np.int32(getattr(strategy, name))
            for name in ("end_id", "max_new_tokens", "min_new_tokens")
        },
        **{
            name: np.asarray(getattr(strategy, name))
            for name in ("repetition_penalty", "temperature", "top_p", "early_stop")
        },
        length_penalty_n=((5 + np.minimum(np.arange(room + 1), strategy.max_new_tokens)) / 6)
        ** strategy.alpha,
        uniform_bn=None
        if uniform_bn is None
        else _padded(uniform_bn, 0, (0, room - uniform_bn.shape[1])),
    )


def _source(
    config: TransformerConfig, source: Any, source_mask_bs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The source and which of its tokens are real, padded; a table of positions that is shorter is what they are padded to."""
    checks.check_source(source.shape, str(source.dtype))
    if source_mask_bs is None:
        source_mask_bs = _token_mask(source, config.padding_id)
    checks.check_token_mask(
        "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), source.shape[:2]
    )
    length = source.shape[1]
    checks.check_length(length, config.max_positions)
    later = 0, min(bucket(length), config.max_positions or bucket(length)) - length
    return _padded(source, 0, later), _padded(source_mask_bs, False, later)


def _prefix(
    config: TransformerConfig, strategy: Strategy, source: Any, prefix: Any, prefix_mask_bp: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What every answer follows, by default the start token, and which of its tokens are real."""
    if prefix is None:
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    if prefix_mask_bp is not None:
        checks.check_token_mask(
            "prefix mask", prefix_mask_bp.shape, str(prefix_mask_bp.dtype), prefix.shape
        )
    last = () if prefix_mask_bp is None else np.asarray(prefix_mask_bp[:, -1]).tolist()
    checks.check_prefix(
        prefix.shape,
        str(prefix.dtype),
        config.padding_id,
        np.asarray(prefix[..., -1:]).tolist(),
        last,
    )
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    return prefix, _token_mask(
        prefix, config.padding_id
    ) if prefix_mask_bp is None else prefix_mask_bp


def _token_mask(token: Any, padding_id: int | None) -> np.ndarray:
    """`mask.token_mask` without a program."""
    return np.ones(token.shape, bool) if padding_id is None else np.asarray(token) != padding_id


def _padded(x: Any, value: Any, extra: tuple[int, int]) -> np.ndarray:
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(int)) if x.dtype.kind in "iu" else x
    return np.pad(x, ((0, 0), extra), constant_values=value)
