"""Generates text with a decoder: greedily, by sampling or by beam search.

The model computes logits. The tokens are chosen here, in NumPy, so every backend chooses alike.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, checks, sampling

from ...common.memory import physical_memory
from .beams import Beams
from .models import Model
from .options import GenerationOptions
from .tokenizer import common_length
from .truncation import truncate

_Text = Callable[[Sequence[int]], str] | None  # decodes ids
_Ends = Callable[[Sequence[int], Sequence[int]], bool]  # whether a continuation ends, from the prompt and its tokens
CHUNK = 128  # prompt tokens per call, since logits are computed for all of them; see `_chunk`


@dataclass(frozen=True)
class Token:
    """The next token of a continuation, reported as soon as it is chosen."""

    prompt: int
    answer: int
    id: int


@dataclass(frozen=True)
class Answer:
    """A complete continuation with its end token. score: log p; by beams, length-penalized."""

    prompt: int
    answer: int
    tokens: tuple[int, ...]
    score: float


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    text: _Text = None,
) -> Iterator[Token | Answer]:
    """Yields the continuations of a batch of prompts, or an encoder-decoder's answers to its sources.

    Yields each token when it is chosen (except in beam search), and each continuation when it ends.
    Tokens are chosen from float32 logits in every dtype. Shorter prompts are padded on the left;
    attention and penalties ignore the padding (for no_repeat_ngram_size, `transformers` does not).
    Sampling depends on the seed and the numbers of prompt and continuation, not on other prompts.
    However, if position frequencies depend on the length (ROTARY), the longest prompt decides. A
    continuation ends if no token may follow.
    text: decodes ids, with special tokens; required by stop_strings.
    Raises ValueError if there is no prompt, if one is empty, if a prompt or a continuation exceeds
    the positions or the memory, if stop_strings are set without `text`, and if bad_words_ids has
    an id outside the vocabulary.
    """
    if not prompts or not all(prompts):
        raise ValueError(f"every prompt needs at least one token; got {[len(prompt) for prompt in prompts]} tokens")
    options.check_vocabulary(model.config.target_vocabulary)
    sources: Sequence[Sequence[int]] = ()
    if model.config.encoder_layers:
        sources, prompts = prompts, [[options.start_id]] * len(prompts)
        check_sources(model.config, sources)
    if options.stop_strings and text is None:
        raise ValueError("stop_strings need a tokenizer; got none")
    ends = functools.partial(_ends, options, text)
    width = max(map(len, prompts))
    most, least = options.most(width, model.config.max_positions), options.least(width)
    copies = options.num_beams if options.num_beams > 1 else options.num_return_sequences
    _require_room(model.config, len(prompts) * copies, width, width + most + max(map(len, sources), default=0))

    def search(own: range) -> Iterator[Token | Answer]:
        if own:
            rows = [prompts[place] for place in own for _ in range(copies)]
            reading = _Reading(model, rows, width, options, most, least, [sources[place] for place in own] if sources else [])
            yield from (_beams if options.num_beams > 1 else _one_by_one)(reading, options, ends, most, own[0])

    yield from model.dealt(len(prompts), search)


def check_sources(config: TransformerConfig, sources: Sequence[Sequence[int]]) -> None:
    """Raises ValueError if a source is longer than the encoder's positions."""
    longest = max(map(len, sources), default=0)
    if 0 < config.max_positions < longest:
        raise ValueError(f"a source must have at most {config.max_positions} tokens, the model's number of positions; got {longest}")


def _ends(options: GenerationOptions, text: _Text, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the last token is an end token or completes a stop string.

    The stop string may start in the prompt, and more of the token's text may follow it.
    """
    if tokens[-1] in options.eos_token_id:
        return True
    if not options.stop_strings or text is None:
        return False
    whole, before = text([*prompt, *tokens]), text([*prompt, *tokens[:-1]])
    told = common_length(before, whole)
    return any(whole.find(stop, max(told - len(stop) + 1, 0)) >= 0 for stop in options.stop_strings)


def _chunk(config: TransformerConfig, length: int) -> int:
    """Returns how many prompt tokens are read per call.

    If frequencies depend on the length (ROTARY), all are, so that every key is rotated alike.
    """
    kinds = map(config.layer_kind, range(config.decoder_layers))
    scalings = [kind.scaling for kind in kinds if kind.rotary and kind.scaling.by_length]
    return length if any(length > (scaling.original_length or 0) for scaling in scalings) else CHUNK


def _require_room(config: TransformerConfig, rows: int, width: int, length: int) -> None:
    """Raises ValueError if the logits and caches of these rows exceed the machine's memory."""
    logits = 4 * min(width, _chunk(config, width)) * config.target_vocabulary
    kept = 2 * length * config.decoder_layers * config.key_value_heads * (config.key_size + config.value_size)  # in half precision
    size, room = rows * (logits + kept), physical_memory()
    if size > room:
        raise ValueError(f"the memory, {room / 1e9:.1f} GB, is too small: {rows} rows at a time need at least {size / 1e9:.1f} GB")


def next_scores(
    scores_bv: np.ndarray, target_bt: np.ndarray, mask_bt: np.ndarray, options: GenerationOptions, ends: bool, final: bool = False
) -> np.ndarray:
    """Returns the scores that choose the next token, after penalties and bans.

    Tokens that complete one of bad_words_ids, and early end tokens, get -inf; so do all others if a
    token is forced. scores_bv: logits, or `log p` of beams. ends: whether an end token is allowed.
    final: whether the longest continuation ends with the token.
    """
    result_bv = sampling.penalise(scores_bv, target_bt, options.repetition_penalty, options.no_repeat_ngram_size, mask_bt)
    for *before, last in options.bad_words_ids:
        if len(before) > target_bt.shape[1] or (not before and last in options.eos_token_id):
            continue
        part = slice(target_bt.shape[1] - len(before), None)
        held_b = ((target_bt[:, part] == before) & mask_bt[:, part]).all(axis=1)
        result_bv[held_b, last] = -np.inf
    if not ends:
        result_bv[:, [id_ for id_ in options.eos_token_id if id_ < result_bv.shape[1]]] = -np.inf
    forced = [] if options.forced_bos_token_id is None or target_bt.shape[1] > 1 else [options.forced_bos_token_id]
    if forced := [*options.forced_eos_token_id] if final and options.forced_eos_token_id else forced:
        result_bv[:] = -np.inf
        result_bv[:, forced] = 0
    return _log_p(result_bv) if options.renormalize_logits else result_bv


def _log_p(logits_bv: np.ndarray) -> np.ndarray:
    """Returns `log p`; rows of -inf stay what they are."""
    most_b1 = np.max(logits_bv, axis=1, keepdims=True)
    x_bv = logits_bv - np.where(np.isfinite(most_b1), most_b1, 0)
    return x_bv - np.log(np.maximum(np.sum(np.exp(x_bv), axis=1, keepdims=True), np.finfo(x_bv.dtype).tiny))


class _Reading:
    """The state of a model that has read one padded text per row: the scores of the next token."""

    _cache: Any  # the model's

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[int]],
        width: int,
        options: GenerationOptions,
        most: int,
        least: int,
        sources: Sequence[Sequence[int]],
    ) -> None:
        self.rows, self.prompts, self._options, self._least = len(prompts), prompts, options, least
        self._prompt_length = width
        pad_id = options.pad_token_id if options.pad_token_id is not None else 0
        self._target_bt = np.array([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], np.int64)
        self._mask_bt = np.arange(width) >= width - np.array([[len(prompt)] for prompt in prompts])
        self._target_bt = np.where(self._mask_bt, self._target_bt, min(pad_id, model.config.target_vocabulary - 1))
        self._model, self._room, self._switches = model, width + most, model.config.rotary_switches
        self._source = [_padded(sources)] if sources else []
        self._begin()

    def read(self, token_b: np.ndarray, row_b: np.ndarray | None = None) -> None:
        """Reads one token per row. row_b: reorders the rows first, row i from row `row_b[i]`."""
        if row_b is not None:
            self._cache = self._model.reorder(self._cache, row_b)
            self._target_bt, self._mask_bt = self._target_bt[row_b], self._mask_bt[row_b]
        new_mask_bt, before = np.ones((self.rows, 1), bool), self._length
        self._target_bt = np.concatenate([self._target_bt, token_b[:, None]], axis=1)
        self._mask_bt = np.concatenate([self._mask_bt, new_mask_bt], axis=1)
        if any(before <= original < self._length for original in self._switches):
            self._begin()  # rotates every key again, with the frequencies of long texts (ROTARY)
        else:
            self._read(token_b[:, None], new_mask_bt)

    @property
    def _length(self) -> int:
        """The number of tokens in the longest row, which has no padding, in any process."""
        return self._target_bt.shape[1]

    def _begin(self) -> None:
        """Reads the whole text."""
        self._cache = self._model.start(self.rows, self._room, *self._source)
        width, chunk = self._target_bt.shape[1], _chunk(self._model.config, self._target_bt.shape[1])
        for start in range(0, width, chunk):
            part = slice(start, start + chunk)
            self._read(self._target_bt[:, part], self._mask_bt[:, part])

    def _read(self, token_bt: np.ndarray, mask_bt: np.ndarray) -> None:
        logits_bv, self._cache = self._model.read(token_bt, mask_bt, self._cache)
        self._logits_bv = logits_bv.astype(np.float32)
        checks.check_logits(bool((self._logits_bv < np.inf).all()))

    @property
    def log_p_bv(self) -> np.ndarray:
        return _log_p(self._logits_bv)

    def scores_bv(self, beams: bool) -> np.ndarray:
        """The logits, or `log p` for beams."""
        ends = self._target_bt.shape[1] - self._prompt_length >= self._least
        final = self._length == self._room - 1
        return next_scores(self.log_p_bv if beams else self._logits_bv, self._target_bt, self._mask_bt, self._options, ends, final)


def _padded(sources: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of sources, padded on the right, and which of them are real."""
    width = max(map(len, sources))
    mask_bs = np.arange(width) < np.array([[len(source)] for source in sources])
    return np.array([[*source, *[0] * (width - len(source))] for source in sources], np.int64), mask_bs


def _one_by_one(reading: _Reading, options: GenerationOptions, ends: _Ends, most: int, first: int) -> Iterator[Token | Answer]:
    """Greedy search or sampling, token by token for all rows. first: number of the first prompt."""
    copies = options.num_return_sequences
    names = [divmod(first * copies + row, copies) for row in range(reading.rows)]
    uniform = [np.random.default_rng([options.seed, *name]) for name in names]
    tokens, log_p, live = [list[int]() for _ in names], np.zeros(reading.rows), np.ones(reading.rows, bool)
    for step in range(1, most + 1):
        scores_bv, log_p_bv = reading.scores_bv(beams=False), reading.log_p_bv
        stuck = ~(scores_bv > -np.inf).any(axis=1)
        token_b = np.zeros(reading.rows, np.int64)
        for row in np.flatnonzero(live & ~stuck):
            token_b[row] = _choose(scores_bv[row], uniform[row], options)
            tokens[row].append(int(token_b[row]))
            log_p[row] += log_p_bv[row, token_b[row]]
            yield Token(*names[row], int(token_b[row]))
        ended = live & (stuck | (step == most))
        for number in np.flatnonzero(live & ~ended).tolist():
            ended[number] = ends(reading.prompts[number], tokens[number])
        for row in np.flatnonzero(ended):
            yield Answer(*names[row], tuple(tokens[row]), float(log_p[row]))
        live &= ~ended
        if not live.any():
            return
        reading.read(token_b)


def _choose(scores_v: np.ndarray, uniform: np.random.Generator, options: GenerationOptions) -> int:
    if not options.do_sample:
        return int(scores_v.argmax())
    return int(sampling.draw(truncate(scores_v, options)[None], uniform.random(1))[0])


def _beams(reading: _Reading, options: GenerationOptions, ends: _Ends, most: int, first: int) -> Iterator[Answer]:
    """Beam search; yields the best hypotheses of each prompt. first: number of the first prompt."""
    size = options.num_beams
    searches = [Beams(options, most, functools.partial(ends, prompt)) for prompt in reading.prompts[::size]]
    while True:
        scores_bv = reading.scores_bv(beams=True)
        token_b, row_b = np.zeros(reading.rows, np.int64), np.arange(reading.rows)
        for prompt, search in enumerate(searches):
            was_done, row = search.done, prompt * size
            search.advance(scores_bv[row : row + size])
            if search.done and not was_done:
                best = search.kept[: options.num_return_sequences]
                yield from (Answer(first + prompt, place, beam.tokens, float(beam.score)) for place, beam in enumerate(best))
            for place, beam in enumerate(search.live):
                token_b[row + place], row_b[row + place] = beam.tokens[-1], row + beam.parent
        if all(search.done for search in searches):
            return
        reading.read(token_b, row_b)
