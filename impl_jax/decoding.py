"""Answers: greedy search, sampling and beam search over a model that decodes in steps."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.typing import Dtype

from reference_numpy import checks
from reference_numpy.strategy import Strategy

from . import programs
from .fused import fused
from .lengths import bucket
from .transformer import Transformer

__all__ = ["Searcher"]

Options = Strategy | Mapping[str, Any]
Answers = dict[str, jax.Array]


class Searcher:
    """The searches of a model as it is now: its weights are copied by `fused`, and rounded to `dtype` where given.

    A whole search is one XLA program: the encoder, the prefix, and a loop of steps that ends with the last answer. Source, prefix and
    answer are padded to few lengths, so that others need no new program; all searchers of models of the same structure share programs.
    Ids are checked before the program, and whether a logit was NaN after it. compiled=False runs operation by operation.
    """

    def __init__(self, model: Transformer, dtype: Dtype | None = None, compiled: bool = True) -> None:
        self._model: Transformer = (_fused if compiled else fused)(model, dtype)
        self._leaves, self._structure = jax.tree.flatten(self._model)
        self._compiled = compiled

    def greedy_search(self, source: Any, strategy: Options, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        strategy = Strategy.of(strategy, self._model.config)
        return self._one_by_one(source, strategy, None, prefix, source_mask_bs)

    def sample(self, source: Any, strategy: Options, uniform_bn: Any, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        strategy = Strategy.of(strategy, self._model.config)
        checks.check_uniform(uniform_bn.shape, (len(source), strategy.max_new_tokens))
        return self._one_by_one(source, strategy, uniform_bn if strategy.temperature else None, prefix, source_mask_bs)

    def beam_search(self, source: Any, strategy: Options, prefix: Any = None, source_mask_bs: Any = None) -> Answers:
        """The beams of a row are queries of one cache: none is reordered (`beams.Beams`)."""
        strategy = Strategy.of(strategy, self._model.config)
        found = self._run(programs.beam_search, strategy, source, prefix, source_mask_bs)
        token_bwn = found["token_bwn"][:, : strategy.n_best, : strategy.max_new_tokens]
        return {"token_bwn": jax.device_put(token_bwn), "score_bw": jax.device_put(found["score_bw"][:, : strategy.n_best])}

    def _one_by_one(self, source: Any, strategy: Strategy, uniform_bn: Any, prefix: Any, source_mask_bs: Any) -> Answers:
        if uniform_bn is not None:
            uniform_bn = _padded(np.asarray(uniform_bn), 0, (0, bucket(strategy.max_new_tokens) - strategy.max_new_tokens))
        found = self._run(programs.one_by_one, strategy, source, prefix, source_mask_bs, uniform_bn)
        return {name: jax.device_put(found[name][:, : strategy.max_new_tokens]) for name in ("token_bn", "log_p_bn")}

    def _run(self, program: Any, strategy: Strategy, source: Any, prefix: Any, source_mask_bs: Any, *more: Any) -> dict[str, np.ndarray]:
        """What the program returns, for arguments that it takes unchecked."""
        config, limit = self._model.config, np.int32(strategy.max_new_tokens)
        if prefix is None:
            prefix = np.full((len(source), 1), strategy.start_id, source.dtype)
        checks.check_prefix(prefix.shape, str(prefix.dtype), config.padding_id, np.asarray(prefix[:, -1:]).tolist())
        checks.check_same_batch(source=source.shape, prefix=prefix.shape)
        self._model.source_embedding.check_ids(source)
        if source_mask_bs is None:
            source_mask_bs = _token_mask(source, config.padding_id)
        checks.check_token_mask("source mask", source_mask_bs.shape, str(source_mask_bs.dtype), source.shape[:2])
        (self._model.target_embedding or self._model.source_embedding).check_ids(prefix)
        room = strategy.replace(max_new_tokens=bucket(strategy.max_new_tokens))
        asked = programs.Asked(*_on_the_right(source, source_mask_bs), *_on_the_left(prefix, config.padding_id), limit, *more)
        with contextlib.nullcontext() if self._compiled else jax.disable_jit():
            found = jax.device_get(program(self._structure, self._leaves, room, asked))
        checks.check_no_nan("logits", bool(found.pop("nan")))
        return found


_fused = functools.partial(jax.jit, static_argnames="dtype")(fused)


def _on_the_right(source: Any, mask_bs: Any) -> tuple[np.ndarray, np.ndarray]:
    """The source and its mask, padded on the right."""
    extra = 0, bucket(source.shape[1]) - source.shape[1]
    return _padded(source, 0, extra), _padded(mask_bs, False, extra)


def _on_the_left(prefix: Any, padding_id: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The prefix and its mask, padded on the left; a prefix of one token stays alone."""
    extra = bucket(prefix.shape[1]) - prefix.shape[1] if prefix.shape[1] > 1 else 0, 0
    return _padded(prefix, 0, extra), _padded(_token_mask(prefix, padding_id), False, extra)


def _token_mask(token: Any, padding_id: int | None) -> np.ndarray:
    """`mask.token_mask` without a program."""
    real = padding_id is None or token.ndim == 3
    return np.ones(token.shape[:2], bool) if real else np.asarray(token) != padding_id


def _padded(x: Any, value: Any, extra: tuple[int, int]) -> np.ndarray:
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(int)) if x.dtype.kind in "iu" else x
    return np.pad(x, ((0, 0), extra) + ((0, 0),) * (x.ndim - 2), constant_values=value)
