"""Continues prompts with a decoder-only model: greedy, by sampling, and by beams. The model computes logits; NumPy chooses the tokens here,
so that every backend chooses alike.
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

_Text = Callable[[Sequence[int]], str] | None  # turns ids into their text
_Ends = Callable[[Sequence[int], Sequence[int]], bool]  # whether an answer ends, of a prompt and its tokens
CHUNK = 128  # tokens of a prompt that are read at a time, since logits of all of them are computed: see `_chunk`


@dataclass(frozen=True)
class Token:
    """The next token of an answer, by the numbers of the prompt and the answer, reported as soon as it is chosen."""

    prompt: int
    answer: int
    id: int


@dataclass(frozen=True)
class Answer:
    """A whole answer: its tokens, the end token included; and their log p, divided by n^length_penalty in a beam search."""

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
    """Yields the answers to the prompts, all in one batch: each token as it is chosen (except with beams), and each answer when it ends.

    Tokens are chosen by float32 logits, whatever the model's dtype. Prompts of different lengths are padded on the left; no token attends
    to the padding and no penalty counts it (for no_repeat_ngram_size `transformers` takes the padding for tokens). Drawn tokens depend on
    the seed and the numbers of prompt and answer, not on the other prompts; but where the frequencies of positions depend on the length
    (ROTARY), the longest prompt decides them for all. An answer ends if no token may follow.
    text: turns ids into their text, special tokens included; stop_strings need it.
    Raises ValueError if there is no prompt, if one is empty, if a prompt or an answer exceeds the positions, if the answers exceed the
    memory, if stop_strings are set and text is None, and if bad_words_ids has an id that the model lacks.
    """
    if not prompts or not all(prompts):
        raise ValueError(f"every prompt needs at least one token; got {[len(prompt) for prompt in prompts]} tokens")
    options.check_vocabulary(model.config.target_vocabulary)
    if options.stop_strings and text is None:
        raise ValueError("stop_strings need a tokenizer; got none")
    ends = functools.partial(_ends, options, text)
    width = max(map(len, prompts))
    most, least = options.most(width, model.config.max_positions), options.least(width)
    copies = options.num_beams if options.num_beams > 1 else options.num_return_sequences
    _require_room(model.config, len(prompts) * copies, width, width + most)

    def search(own: range) -> Iterator[Token | Answer]:
        if own:
            rows = [prompts[place] for place in own for _ in range(copies)]
            reading = _Reading(model, rows, width, options, most, least)
            yield from (_beams if options.num_beams > 1 else _one_by_one)(reading, options, ends, most, own[0])

    yield from model.dealt(len(prompts), search)


def _ends(options: GenerationOptions, text: _Text, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Returns whether the answer ends: its last token is an end token or completes a stop string,
    which may begin in the prompt and may be followed by more of that token's text.
    """
    if tokens[-1] in options.eos_token_id:
        return True
    if not options.stop_strings or text is None:
        return False
    whole, before = text([*prompt, *tokens]), text([*prompt, *tokens[:-1]])
    told = common_length(before, whole)
    return any(whole.find(stop, max(told - len(stop) + 1, 0)) >= 0 for stop in options.stop_strings)


def _chunk(config: TransformerConfig, length: int) -> int:
    """Returns how many tokens of a prompt of that length are read at a time: all of them if the frequencies of its positions depend on the
    length that is read with them (ROTARY), so that every key has those of the whole prompt.
    """
    kinds = map(config.layer_kind, range(config.decoder_layers))
    scalings = [kind.scaling for kind in kinds if kind.rotary and kind.scaling.by_length]
    return length if any(length > (scaling.original_length or 0) for scaling in scalings) else CHUNK


def _require_room(config: TransformerConfig, rows: int, width: int, length: int) -> None:
    """Raises ValueError if the logits and caches of these rows, with prompts of that width, exceed the machine's memory."""
    logits = 4 * min(width, _chunk(config, width)) * config.target_vocabulary
    kept = 2 * length * config.decoder_layers * config.key_value_heads * (config.key_size + config.value_size)  # of half precision
    size, room = rows * (logits + kept), physical_memory()
    if size > room:
        raise ValueError(f"answers must fit into memory, {room / 1e9:.1f} GB; {rows} at a time take {size / 1e9:.1f} GB or more")


def next_scores(scores_bv: np.ndarray, target_bt: np.ndarray, mask_bt: np.ndarray, options: GenerationOptions, ends: bool) -> np.ndarray:
    """Returns the scores that choose the next token: with repetition_penalty and no_repeat_ngram_size, and -inf for a token that completes
    one of bad_words_ids, and for an end token that comes too early.

    scores_bv: logits, or `log p` of beams. ends: whether an end token may come.
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
    return result_bv


class _Reading:
    """The model after it has read a text for each row, padded to a width: the scores of the next token."""

    _cache: Any  # of the model

    def __init__(
        self, model: Model, prompts: Sequence[Sequence[int]], width: int, options: GenerationOptions, most: int, least: int
    ) -> None:
        self.rows, self.prompts, self._options, self._least = len(prompts), prompts, options, least
        self._prompt_length = width
        pad_id = options.pad_token_id if options.pad_token_id is not None else 0
        self._target_bt = np.array([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], np.int64)
        self._mask_bt = np.arange(width) >= width - np.array([[len(prompt)] for prompt in prompts])
        self._target_bt = np.where(self._mask_bt, self._target_bt, min(pad_id, model.config.target_vocabulary - 1))
        self._model, self._room, self._switches = model, width + most, model.config.rotary_switches
        self._begin()

    def read(self, token_b: np.ndarray, row_b: np.ndarray | None = None) -> None:
        """Reads these tokens; first, row i becomes what row `row_b[i]` was."""
        if row_b is not None:
            self._cache = self._model.reorder(self._cache, row_b)
            self._target_bt, self._mask_bt = self._target_bt[row_b], self._mask_bt[row_b]
        new_mask_bt, before = np.ones((self.rows, 1), bool), self._length
        self._target_bt = np.concatenate([self._target_bt, token_b[:, None]], axis=1)
        self._mask_bt = np.concatenate([self._mask_bt, new_mask_bt], axis=1)
        if any(before <= original < self._length for original in self._switches):
            self._begin()  # every key rotates anew, by the frequencies of long texts (ROTARY)
        else:
            self._read(token_b[:, None], new_mask_bt)

    @property
    def _length(self) -> int:
        """The tokens of the longest row, read here or elsewhere: it has no padding."""
        return self._target_bt.shape[1]

    def _begin(self) -> None:
        """Reads the whole text."""
        self._cache = self._model.start(self.rows, self._room)
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
        x_bv = self._logits_bv - np.max(self._logits_bv, axis=1, keepdims=True)
        return x_bv - np.log(np.sum(np.exp(x_bv), axis=1, keepdims=True))

    def scores_bv(self, beams: bool) -> np.ndarray:
        """The logits, or `log p` for beams."""
        ends = self._target_bt.shape[1] - self._prompt_length >= self._least
        return next_scores(self.log_p_bv if beams else self._logits_bv, self._target_bt, self._mask_bt, self._options, ends)


def _one_by_one(reading: _Reading, options: GenerationOptions, ends: _Ends, most: int, first: int) -> Iterator[Token | Answer]:
    """Searches greedily, or samples: one token for every row, then the next. first: the number of the first prompt."""
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
    """Searches every prompt by beams, and yields its best hypotheses when it ends. first: the number of the first prompt."""
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
