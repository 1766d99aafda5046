"""The inputs of a search, padded to a few lengths, and the search as one program."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from reference_numpy import TransformerConfig, checks
from reference_numpy.strategy import Strategy

from .. import mask
from ..beams import length_penalty
from ..framework import Array, bucket, program_count
from ..transformer import Transformer
from ..values import Mask

__all__ = ["Plan", "Prompt", "Request", "Searches", "plan", "program", "request"]

Options = Strategy | Mapping[str, Any]
Answers = dict[str, jax.Array]
Program = jax.stages.Wrapped  # (structure, leaves, plan, request) -> answers


class Prompt(NamedTuple):
    """The input of a search: for each row a source, and the prefix that its answer continues."""

    source: Array | None
    prefix: Array | None = None
    source_mask_bs: Array | None = None
    prefix_mask_bp: Array | None = None


class Plan(NamedTuple):
    """The constants of a program; everything else is an argument."""

    room: int  # longest answer that fits
    beams: int
    repetition: bool  # lower the scores of earlier tokens
    no_repeat_ngram: int
    top_k: int  # 0 unless tokens are drawn
    by_probability: bool


class Request(NamedTuple):
    """The arguments of a search, with the source padded on the right, the prefix on the left.

    max_new_tokens: limit of an answer; the plan has room for more. length_penalty_n: for answers of
    0, 1, ... tokens.
    """

    source: jax.Array | None
    source_mask_bs: Mask
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


def program(search: Callable[[Transformer, Plan, Request], Answers]) -> Program:
    """Makes a search one XLA program per structure of model and plan, shared by all models.

    The program returns the search's results and `valid`: whether all logits were valid.
    """

    def run(structure: PyTreeDef, leaves: list[jax.Array], plan: Plan, request: Request) -> Answers:
        return search(jax.tree.unflatten(structure, leaves), plan, request)

    return jax.jit(run, static_argnums=(0, 2))


class Searches:
    """A model and the programs of its searches. compiled=False: runs op by op."""

    def __init__(self, model: Transformer, programs: tuple[Program, ...], compiled: bool) -> None:
        self._model, self._programs, self._compiled = model, programs, compiled
        self._leaves, self._structure = jax.tree.flatten(model)

    @property
    def graphs(self) -> int:
        """The number of programs compiled for the searches of all models."""
        return sum(map(program_count, self._programs))

    def answers(
        self,
        search: Program,
        strategy: Options,
        prompt: Prompt,
        uniform_bn: np.ndarray | None = None,
        beams: bool = False,
    ) -> Answers:
        """Returns the answers of a search, cut to their lengths. Raises ValueError as `request`
        does, on invalid ids, and on invalid logits.
        """
        strategy = Strategy.of(strategy, self._model.config)
        drawn = uniform_bn is not None and strategy.temperature > 0
        chosen = plan(strategy, strategy.beam_size if beams else 1, drawn)
        arguments = request(self._model.config, strategy, prompt, uniform_bn)
        self._model.check_ids(prompt.source, prompt.prefix)
        with contextlib.nullcontext() if self._compiled else jax.disable_jit():
            found = jax.device_get(search(self._structure, self._leaves, chosen, arguments))
        checks.check_logits(bool(found.pop("valid")))
        if beams:
            token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
            found = {"token_bwn": token_bwn, "score_bw": found["score_bw"][:, : strategy.n_best]}
        else:
            names = "token_bn", "log_p_bn"  # a program sorts them
            found = {name: found[name][:, : strategy.max_new_tokens] for name in names}
        return {name: jax.device_put(x) for name, x in found.items()}


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """Returns the plan of a beam search, or with one beam of a greedy search or of sampling."""
    return Plan(
        room=bucket(strategy.max_new_tokens),
        beams=beams,
        repetition=strategy.repetition_penalty != 1,
        no_repeat_ngram=strategy.no_repeat_ngram,
        top_k=strategy.top_k if drawn else 0,
        by_probability=drawn and strategy.top_p < 1,
    )


def request(
    config: TransformerConfig,
    strategy: Strategy,
    prompt: Prompt,
    uniform_bn: np.ndarray | None = None,
) -> Request:
    """Returns the arguments of a program, for checked ids.

    Raises ValueError if source or prefix is missing or unexpected, and on invalid masks, prefixes,
    lengths and uniform numbers.
    """
    source, source_mask_bs = _source(config, prompt.source, prompt.source_mask_bs)
    prefix, prefix_mask_bp = _prefix(config, strategy, prompt)
    read = prefix.shape[1] + strategy.max_new_tokens - 1  # no model reads an answer's last token
    checks.check_length(read, config.max_positions)
    room = bucket(strategy.max_new_tokens)
    # A prefix of one token is not padded, nor if positions would count the padding.
    unpadded = prefix.shape[1] == 1 or config.position_start == "row"
    earlier = 0 if unpadded else bucket(prefix.shape[1]) - prefix.shape[1], 0
    if uniform_bn is not None:
        wanted = len(prefix), strategy.max_new_tokens
        lowest, highest = uniform_bn.min(initial=0), uniform_bn.max(initial=0)
        checks.check_uniform(uniform_bn.shape, wanted, lowest, highest)
        later = 0, room - strategy.max_new_tokens
        uniform_bn = _padded(uniform_bn, 0, later) if strategy.temperature else None
    length_n = np.minimum(np.arange(room + 1), strategy.max_new_tokens)
    integers = ("end_id", "max_new_tokens", "min_new_tokens")
    numbers = ("repetition_penalty", "temperature", "top_p", "early_stop")
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
    config: TransformerConfig, source: Array | None, source_mask_bs: Array | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the source and its token mask, padded within the position table, or None, None."""
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=source_mask_bs)
    if source is None:
        return None, None
    checks.check_source(source.shape, str(source.dtype))
    if source_mask_bs is None:
        source_mask_bs = np.asarray(source) != config.padding_id  # no id equals None
    length = source.shape[1]
    mask.check("source mask", source_mask_bs, source.shape[:2])
    checks.check_length(length, config.max_positions)
    room = length if config.rotary_by_length else bucket(length)
    later = 0, min(room, config.max_positions or room) - length
    return _padded(source, 0, later), _padded(source_mask_bs, False, later)


def _prefix(config: TransformerConfig, strategy: Strategy, prompt: Prompt) -> tuple[Array, Array]:
    """Returns the prompt of every answer, by default the start token, and its token mask."""
    source, prefix, _, prefix_mask_bp = prompt
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    if prefix is None:
        assert source is not None
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    mask.check("prefix mask", prefix_mask_bp, prefix.shape)
    last = [] if prefix_mask_bp is None else np.asarray(prefix_mask_bp[:, -1]).tolist()
    ends = np.asarray(prefix[..., -1:]).tolist()
    checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, ends, last)
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    if prefix_mask_bp is None:
        prefix_mask_bp = np.asarray(prefix) != config.padding_id
    return prefix, prefix_mask_bp


def _padded(x: Array, value: int, extra: tuple[int, int]) -> np.ndarray:
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(int)) if x.dtype.kind in "iu" else x
    return np.pad(x, ((0, 0), extra), constant_values=value)
