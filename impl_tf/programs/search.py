"""Searches as programs: requests, checked and padded to a few lengths, and the graphs for them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .. import mask, weights
from ..framework import id_bounds
from ..rotary import by_length
from ..transformer import Transformer

__all__ = ["Array", "Plan", "Program", "Request", "bucket", "plan", "request"]

Answers: TypeAlias = "dict[str, tf.Tensor]"
Array: TypeAlias = np.ndarray | tf.Tensor

SHORTEST, LONGEST = 16, 64


class Plan(NamedTuple):
    """The constants of a graph; everything else is its input."""

    room: int  # the longest answer that fits
    beams: int
    repetition: bool  # whether tokens of the target become less likely
    no_repeat_ngram: int
    drawn: bool  # whether tokens are drawn
    most: int  # upper bound of top_k; 0: no top_k
    by_probability: bool  # whether top_p is less than 1


class Request(NamedTuple):
    """The inputs of a graph: arrays, or tensors."""

    source: Array | None  # None in a decoder-only model, as its mask
    source_mask_bs: Array | None
    before: Array  # the prefix but for its last token, `b p`
    before_mask_bt: Array
    start: Array  # how many of these only fill up its length
    last_b1: Array
    end_id: Array
    pad_id: Array  # follows the end token
    max_new_tokens: Array
    min_new_tokens: Array
    top_k: Array
    repetition_penalty: Array
    temperature: Array
    top_p: Array
    early_stop: Array
    forbidden_v: Array  # True = no answer holds the id
    length_penalty_n: Array
    uniform_bn: tf.Tensor = None  # where tokens are drawn


class Program:
    """A search of a model, `search(model, plan, request)`, as one graph for each plan and shape.

    compiled: by XLA; otherwise the search runs operation by operation.
    """

    def __init__(
        self, search: Callable[..., Answers], model: Transformer, device: str, compiled: bool
    ) -> None:
        self._model, self._device = model, device
        self._search: Any = partial(search, model)
        if compiled:
            self._search = tf.function(self._search, autograph=False, jit_compile=True)

    @property
    def graphs(self) -> int:
        """The number of graphs that have been compiled."""
        return getattr(self._search, "experimental_get_tracing_count", int)()

    def __call__(self, plan: Plan, strategy: Strategy, *given: Array | None) -> Answers:
        """The answers to what `request` is given. Raises ValueError if a logit is inf or NaN."""
        arrays = (None if array is None else np.asarray(array) for array in given)
        asked = request(self._model.config, strategy, *arrays)
        with tf.device(self._device):
            tensors = (
                None if array is None else weights.from_numpy(array, self._device)
                for array in asked
            )
            found = self._search(plan, Request(*tensors))
        checks.check_logits(bool(found["finite"]))
        return found


def bucket(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 192, ... that is not less, so that few lengths serve all."""
    if length > LONGEST:
        return -(-length // LONGEST) * LONGEST
    return max(SHORTEST, 1 << (length - 1).bit_length())


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """The plan of greedy search, of a search with beams, or of sampling (drawn)."""
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
    numbers = ("repetition_penalty", "temperature", "top_p", "early_stop")
    whole = ("end_id", "max_new_tokens", "min_new_tokens", "top_k")
    length_n = np.minimum(np.arange(1, room + 1), strategy.max_new_tokens)
    if uniform_bn is not None:
        right = (0, 0), (0, room - uniform_bn.shape[1])
        uniform_bn = np.pad(uniform_bn.astype(np.float64), right)
    return Request(
        source=source,
        source_mask_bs=None if source is None else source_mask_bs,
        before=np.pad(before.astype(np.int32), left),
        before_mask_bt=np.pad(prefix_mask_bp[:, :-1], left),
        start=np.int32(start),
        last_b1=prefix[:, -1:].astype(np.int32),
        pad_id=np.int32(strategy.pad_id(config)),
        forbidden_v=np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        length_penalty_n=((5 + length_n) / 6) ** strategy.alpha,
        uniform_bn=uniform_bn,
        **{name: np.int32(getattr(strategy, name)) for name in whole},
        **{name: np.array(getattr(strategy, name)) for name in numbers},
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
    length = source.shape[1] if by_length(config) else bucket(source.shape[1])
    right = (0, 0), (0, min(length, config.max_positions or length) - source.shape[1])
    return np.pad(source.astype(np.int32), right), np.pad(mask_bs, right)


def _prefix(
    config: TransformerConfig,
    strategy: Strategy,
    source: Any,
    prefix: Any,
    mask_bp: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The prefix, by default the start token, and its token mask."""
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
    if mask_bp is None:
        mask_bp = np.asarray(mask.token_mask(prefix, config.padding_id))
    return prefix, mask_bp
