"""Searches as programs: requests, checked and padded to a few lengths, and their graphs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from .. import mask, weights
from ..inputs import InputLayers
from ..transformer import Transformer
from ..values import Text
from .fused import fused, refresh

__all__ = ["Answers", "Plan", "Programs", "Request", "State", "bucket", "loop", "plan"]

Answers: TypeAlias = dict[str, tf.Tensor]
Array: TypeAlias = np.ndarray | tf.Tensor
Options: TypeAlias = Strategy | Mapping[str, float | None]
State: TypeAlias = dict[str, Any]  # variables of a search loop

SHORTEST, LONGEST = 16, 64


class Plan(NamedTuple):
    """The constants of a graph; everything else is an input."""

    room: int  # longest answer that fits
    beams: int
    repetition: bool  # lower the scores of earlier tokens
    no_repeat_ngram: int
    drawn: bool  # sample instead of taking the likeliest
    most: int  # upper bound of top_k; 0: no top_k
    by_probability: bool  # top_p is less than 1


class Request(NamedTuple):
    """The inputs of a graph: arrays or tensors."""

    source: Array | None  # None, like its mask, in a decoder-only model
    source_mask_bs: Array | None
    before: Array  # the prefix without its last token, `b p`
    before_mask_bt: Array
    start: Array  # how many of these are filler
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
    forbidden_v: Array  # True = excluded from answers
    length_penalty_n: Array
    uniform_bn: tf.Tensor = None  # if tokens are drawn


Search: TypeAlias = Callable[[Transformer, Plan, Request], Answers]


class Programs:
    """A copy of a model with fused projections, and its searches: one graph per plan and shape.

    dtype: as in `fused`. compiled: by XLA; otherwise a search runs op by op.
    """

    def __init__(self, model: Transformer, dtype: str | None = None, compiled: bool = True) -> None:
        variables = weights.variables(model, model.config)
        self._device = next(iter(variables.values())).value.device
        self._compiled, self._searches = compiled, dict[Search, Callable[..., Answers]]()
        with tf.device(self._device):
            self.model = fused(model, dtype)

    @property
    def graphs(self) -> int:
        """The number of compiled graphs."""
        searches = self._searches.values()
        return sum(getattr(run, "experimental_get_tracing_count", int)() for run in searches)

    def refresh(self, model: Transformer) -> None:
        """Copies the weights of this model, or of another with its config; compiles no graph."""
        refresh(self.model, model)

    def answers(
        self,
        search: Search,
        strategy: Options,
        source: Text,
        prefix: Text,
        uniform_bn: Array | None = None,
        beams: bool = False,
    ) -> Answers:
        """Returns the answers of a search. Raises ValueError on invalid requests and logits."""
        strategy = Strategy.of(strategy, self.model.config)
        chosen = plan(strategy, strategy.beam_size if beams else 1, uniform_bn is not None)
        if search not in self._searches:
            run: Callable[..., Answers] = partial(search, self.model)
            if self._compiled:
                run = tf.function(run, autograph=False, jit_compile=True)
            self._searches.setdefault(search, run)
        asked = request(self.model, strategy, source, prefix, uniform_bn)
        with tf.device(self._device):
            tensors = tf.nest.map_structure(self._tensor, asked)
            found = self._searches[search](chosen, tensors)
        checks.check_logits(bool(found.pop("finite")))
        if not beams:
            return {name: x_bn[:, : strategy.max_new_tokens] for name, x_bn in found.items()}
        token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
        return {"token_bwn": token_bwn, "score_bw": found["score_bw"][:, : strategy.n_best]}

    def _tensor(self, array: np.ndarray | None) -> tf.Tensor | None:
        return None if array is None else weights.from_numpy(array, self._device)


def loop(step: Callable[[State], State], state: State, request: Request) -> State:
    """Runs steps until max_new_tokens are read, all rows are done, or a logit was not finite;
    returns the state.
    """

    def goes_on(state: State) -> tf.Tensor:
        more = (state["step"] < request.max_new_tokens) & state["finite"]
        return more & ~tf.reduce_all(state["done_b"])

    (state,) = tf.while_loop(goes_on, lambda state: (step(state),), (state,))
    return state


def bucket(length: int) -> int:
    """Rounds a length up to 16, 32, 64, 128, 192, ..., so that a few graphs serve all lengths."""
    if length > LONGEST:
        return -(-length // LONGEST) * LONGEST
    return max(SHORTEST, 1 << (length - 1).bit_length())


def plan(strategy: Strategy, beams: int = 1, drawn: bool = False) -> Plan:
    """Returns the plan of a greedy search, a beam search, or sampling (drawn)."""
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
    model: Transformer,
    strategy: Strategy,
    source: Text,
    prefix: Text,
    uniform_bn: Array | None = None,
) -> Request:
    """Returns the inputs of a graph. Raises ValueError on invalid ids, masks and prefixes."""
    config, (source_bs, source_mask_bs) = model.config, _source(model, source)
    prefix_bp, prefix_mask_bp = _prefix(model, strategy, source_bs, prefix)
    before, room = prefix_bp[:, :-1], bucket(strategy.max_new_tokens)
    if uniform_bn is not None:
        uniform_bn, shape = np.asarray(uniform_bn), (len(prefix_bp), strategy.max_new_tokens)
        lowest, highest = uniform_bn.min(initial=0), uniform_bn.max(initial=0)
        checks.check_uniform(uniform_bn.shape, shape, lowest, highest)
        right = (0, 0), (0, room - uniform_bn.shape[1])
        uniform_bn = np.pad(uniform_bn.astype(np.float64), right)
    start = bucket(before.shape[1]) - before.shape[1] if before.size else 0
    left = (0, 0), (start, 0)
    numbers = ("repetition_penalty", "temperature", "top_p", "early_stop")
    whole = ("end_id", "max_new_tokens", "min_new_tokens", "top_k")
    length_n = np.minimum(np.arange(1, room + 1), strategy.max_new_tokens)
    return Request(
        source=source_bs,
        source_mask_bs=source_mask_bs,
        before=np.pad(before.astype(np.int32), left),
        before_mask_bt=np.pad(prefix_mask_bp[:, :-1], left),
        start=np.int32(start),
        last_b1=prefix_bp[:, -1:].astype(np.int32),
        pad_id=np.int32(strategy.pad_id(config)),
        forbidden_v=np.isin(np.arange(config.target_vocabulary), strategy.forbidden_ids(config)),
        length_penalty_n=((5 + length_n) / 6) ** strategy.alpha,
        uniform_bn=uniform_bn,
        **{name: np.int32(getattr(strategy, name)) for name in whole},
        **{name: np.array(getattr(strategy, name)) for name in numbers},
    )


def _array(x: Array | None) -> np.ndarray | None:
    return None if x is None else np.asarray(x)


def _source(model: Transformer, text: Text) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the source and its mask, padded, or None, None."""
    config, source, mask_bs = model.config, _array(text.ids), _array(text.mask)
    checks.check_source_given(config.encoder_layers, source, source_mask_bs=mask_bs)
    if source is None:
        return None, None
    checks.check_source(source.shape, str(source.dtype))
    length = source.shape[1]
    InputLayers.of(model, "source").embedding.check_ids(source)
    checks.check_length(length, config.max_positions)
    mask_bs = source != config.padding_id if mask_bs is None else mask_bs  # no id equals None
    mask.check("source mask", mask_bs, source.shape[:2])
    room = length if config.rotary_by_length else bucket(length)
    right = (0, 0), (0, min(room, config.max_positions or room) - length)
    return np.pad(source.astype(np.int32), right), np.pad(mask_bs, right)


def _prefix(
    model: Transformer, strategy: Strategy, source: Any, given: Text
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the prefix, by default the start token, and its token mask."""
    config, prefix, mask_bp = model.config, _array(given.ids), _array(given.mask)
    checks.check_prefix_given(prefix is not None, source is not None, strategy.start_id)
    if prefix is None:
        prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
    mask.check("prefix mask", mask_bp, prefix.shape)
    last, real = prefix[..., -1:].tolist(), () if mask_bp is None else mask_bp[:, -1].tolist()
    checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, last, real)
    InputLayers.of(model, "target").embedding.check_ids(prefix)
    checks.check_length(prefix.shape[1] + strategy.max_new_tokens - 1, config.max_positions)
    if source is not None:
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
    return prefix, prefix != config.padding_id if mask_bp is None else mask_bp
