"""What a search is given, padded to few lengths, and the search as one program."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from ..beams import length_penalty
from ..framework import Array, bucket
from ..transformer import Transformer

__all__ = ["Plan", "Program", "Request", "batch_of", "bucket", "plan", "request"]


class Plan(NamedTuple):
    """What a program is made for; everything else is its argument."""

    room: int  # the tokens of an answer that there is room for
    beams: int
    repetition: bool  # whether tokens of the target become less likely
    no_repeat_ngram: int
    top_k: int  # 0 if nothing is drawn
    by_probability: bool


class Request(NamedTuple):
    """The arguments of a search: the source padded on its right, the prefix on its left.

    No mask has the padding. A decoder-only model has no source. max_new_tokens: the most tokens of
    an answer; the plan has the room. length_penalty_n: of answers of 0, 1, ... tokens.
    """

    source: jax.Array | None
    source_mask_bs: jax.Array | None
    prefix_bp: jax.Array
    prefix_mask_bp: jax.Array
    end_id: jax.Array
    pad_id: jax.Array
    forbidden_v: jax.Array
    max_new_tokens: jax.Array
    min_new_tokens: jax.Array
    repetition_penalty: jax.Array
    temperature: jax.Array
    top_p: jax.Array
    early_stop: jax.Array
    length_penalty_n: jax.Array
    uniform_bn: jax.Array | None = None  # None: nothing is drawn


class Program:
    """`search(model, plan, request)` as an XLA program for each structure of a model and plan.

    The searchers of all models share it. A call returns NumPy arrays, and raises ValueError if
    `valid` of the search is False.
    """

    def __init__(self, search: Callable[[Transformer, Plan, Request], dict[str, jax.Array]]):
        @functools.partial(jax.jit, static_argnums=(0, 2))
        def program(structure: Any, leaves: list[Any], plan: Plan, request: Request) -> Any:
            return search(jax.tree.unflatten(structure, leaves), plan, request)

        self.program = program

    def __call__(
        self, structure: Any, leaves: list[Any], plan: Plan, request: Request, compiled: bool
    ) -> dict[str, np.ndarray]:
        with contextlib.nullcontext() if compiled else jax.disable_jit():
            found = jax.device_get(self.program(structure, leaves, plan, request))
        checks.check_logits(bool(found.pop("valid")))
        return found


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """The plan of a beam search, or, with one beam, of a greedy one or of sampling."""
    return Plan(
        room=bucket(strategy.max_new_tokens),
        beams=beams,
        repetition=strategy.repetition_penalty != 1,
        no_repeat_ngram=strategy.no_repeat_ngram,
        top_k=strategy.top_k if drawn else 0,
        by_probability=drawn and strategy.top_p < 1,
    )


def batch_of(
    config: TransformerConfig,
    strategy: Strategy,
    source: Array | None,
    prefix: Array | None,
    source_mask_bs: Array | None,
) -> int:
    """The number of rows. Raises ValueError if the source or prefix is missing, or one too many."""
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=source_mask_bs)
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    rows = prefix if source is None else source
    assert rows is not None
    return len(rows)


def request(
    config: TransformerConfig,
    strategy: Strategy,
    source: Array | None,
    prefix: Array | None,
    source_mask_bs: Array | None,
    prefix_mask_bp: Array | None,
    uniform_bn: Array | None = None,
) -> Request:
    """The arguments of a program, for checked ids.

    Raises ValueError on masks, prefixes and lengths that do not fit.
    """
    batch_of(config, strategy, source, prefix, source_mask_bs)
    if source is not None:
        source, source_mask_bs = _source(config, source, source_mask_bs)
    prefix, prefix_mask_bp = _prefix(config, strategy, source, prefix, prefix_mask_bp)
    read = prefix.shape[1] + strategy.max_new_tokens - 1  # no model reads an answer's last token
    checks.check_length(read, config.max_positions)
    room = bucket(strategy.max_new_tokens)
    # A prefix of one token is not padded, nor one whose positions would count the padding.
    unpadded = prefix.shape[1] == 1 or config.position_start == "row"
    earlier = 0 if unpadded else bucket(prefix.shape[1]) - prefix.shape[1], 0
    if uniform_bn is not None:
        uniform_bn = _padded(uniform_bn, 0, (0, room - uniform_bn.shape[1]))
    integers = ("end_id", "max_new_tokens", "min_new_tokens")
    numbers = ("repetition_penalty", "temperature", "top_p", "early_stop")
    length_n = np.minimum(np.arange(room + 1), strategy.max_new_tokens)
    arrays: dict[str, Any] = {
        "source": source,
        "source_mask_bs": source_mask_bs,
        "prefix_bp": _padded(prefix, 0, earlier),
        "prefix_mask_bp": _padded(prefix_mask_bp, False, earlier),
        "pad_id": np.int32(strategy.pad_id(config)),
        "forbidden_v": np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        "length_penalty_n": length_penalty(length_n, strategy.alpha),
        "uniform_bn": uniform_bn,
    }
    arrays |= {name: np.int32(getattr(strategy, name)) for name in integers}
    return Request(**arrays | {name: np.asarray(getattr(strategy, name)) for name in numbers})


def _source(
    config: TransformerConfig, source: Array, source_mask_bs: Array | None
) -> tuple[np.ndarray, np.ndarray]:
    """The source and its token mask, padded, but not beyond the table of positions."""
    checks.check_source(source.shape, str(source.dtype))
    if source_mask_bs is None:
        source_mask_bs = _token_mask(source, config.padding_id)
    kind, length = str(source_mask_bs.dtype), source.shape[1]
    checks.check_token_mask("source mask", source_mask_bs.shape, kind, source.shape[:2])
    checks.check_length(length, config.max_positions)
    later = 0, min(bucket(length), config.max_positions or bucket(length)) - length
    return _padded(source, 0, later), _padded(source_mask_bs, False, later)


def _prefix(
    config: TransformerConfig,
    strategy: Strategy,
    source: Array | None,
    prefix: Array | None,
    prefix_mask_bp: Array | None,
) -> tuple[Array, Array]:
    """The prompt of every answer, by default the start token, and its token mask."""
    if prefix is None:
        assert source is not None
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    last: Any = ()
    if prefix_mask_bp is not None:
        kind = str(prefix_mask_bp.dtype)
        checks.check_token_mask("prefix mask", prefix_mask_bp.shape, kind, prefix.shape)
        last = np.asarray(prefix_mask_bp[:, -1]).tolist()
    ends = np.asarray(prefix[..., -1:]).tolist()
    checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, ends, last)
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    if prefix_mask_bp is None:
        prefix_mask_bp = _token_mask(prefix, config.padding_id)
    return prefix, prefix_mask_bp


def _token_mask(token: Array, padding_id: int | None) -> np.ndarray:
    """`mask.token_mask` without a program."""
    return np.ones(token.shape, bool) if padding_id is None else np.asarray(token) != padding_id


def _padded(x: Array, value: int, extra: tuple[int, int]) -> np.ndarray:
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(int)) if x.dtype.kind in "iu" else x
    return np.pad(x, ((0, 0), extra), constant_values=value)
