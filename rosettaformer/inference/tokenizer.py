"""The tokenizer of a folder: texts to ids, singly or in batches, and back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import decoders, models

from reference_numpy import TransformerConfig

from ..tokenizer_calls import failures, within_time
from . import tokenizer_files
from .ends import common_length
from .tokenizer_entries import SPECIAL

_UNLIMITED = 1_000_000  # a model_max_length of at least this means that there is none
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_OF_PAIRS = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
# clean_up_tokenization_spaces removes a space before these, in this order
_CLEANED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")}}


Inputs = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # ids, masks and segments of an encoder


class Batch(NamedTuple):
    """Texts padded to the longest: ids, masks of real tokens, and the segment of each, 0 if the tokenizer has none."""

    token_bs: np.ndarray
    mask_bs: np.ndarray
    segment_bs: np.ndarray


class Tokenizer:
    """Texts to ids and back, as `transformers` does with the files of the folder.

    vocabulary: the number of the model's tokens; None if unknown. entries: the model's config.json. Raises ValueError if the folder has no
    tokenizer, if its files are damaged, and if it has another number of tokens.
    """

    def __init__(self, folder: Path, vocabulary: int | None, entries: Mapping[str, Any]) -> None:
        self._inner, self._settings, self._input_names, size = tokenizer_files.read(folder, entries)
        if vocabulary is not None and not _fits(size, vocabulary):
            raise ValueError(f"the tokenizer of {folder} must have the {vocabulary} tokens of the model; it has {size}")
        self._vocabulary = vocabulary

    @property
    def templates(self) -> Any:
        """What tokenizer_config.json says of chat templates."""
        return self._settings.get("chat_template")

    @property
    def special(self) -> dict[str, str]:
        """The texts of the special tokens by their names, such as bos_token."""
        return {name: str(self._settings[name]) for name in SPECIAL if self._settings.get(name) is not None}

    def prompt(self, text: str, whole: bool = False) -> list[int]:
        """Returns the ids of a text that is to be continued. whole: nothing is put around it, since it has its special tokens."""
        return list(self._encoded([text], whole)[0].ids)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token; a token that is no whole character is shown as the vocabulary writes it."""
        written = [self._inner.id_to_token(int(id_)) or f"<{id_}>" for id_ in ids]
        if not isinstance(self._inner.decoder, decoders.ByteLevel):
            return written
        texts = [self._inner.decoder.decode([token]) for token in written]
        return [token if "\ufffd" in text else text for token, text in zip(written, texts, strict=True)]

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """Returns the text of ids, without special tokens unless `special`."""
        (text,) = within_time(lambda: self._inner.decode_batch([[*ids]], skip_special_tokens=not special), 4 * len(ids))
        pairs = isinstance(self._inner.model, models.BPE) and not self._settings.get(_OF_PAIRS, False)
        if self._settings.get("clean_up_tokenization_spaces", False) and not pairs:
            for spaced, clean in _CLEANED.items():
                text = text.replace(spaced, clean)
        return text

    def batch(self, texts: Sequence[str | tuple[str, str]], positions: int) -> Batch:
        """Encodes texts and pairs of texts like `tokenizer(texts, truncation=True, padding=True)`: with special tokens, cut to the
        positions (0: not cut) or the tokenizer's own limit, the longer text of a pair first.
        """
        found = self._cut(texts, positions)
        width = max(len(row.ids) for row in found)
        left = self._settings.get("padding_side", "right") == "left"
        pad_id = self.id_of("pad_token") or 0
        segments = "token_type_ids" in self._input_names

        def padded(rows: list[list[int]], fill: int) -> np.ndarray:
            filled = [[*row, *[fill] * (width - len(row))] for row in rows]
            return np.array([[*row[len(given) :], *given] if left else row for row, given in zip(filled, rows, strict=True)])

        mask_bs = padded([row.attention_mask for row in found], 0).astype(bool)
        segment_bs = padded([row.type_ids if segments else [0] * len(row.ids) for row in found], 0)
        return Batch(padded([row.ids for row in found], pad_id), mask_bs, segment_bs)

    def read(self, texts: Sequence[str | tuple[str, str]], config: TransformerConfig, positions: int = 0) -> Inputs:
        """Like `batch`, for an encoder of that config: cut to at most its positions; without segments if it has none.

        Raises ValueError on a text without a token, and on a pair if there is no second segment.
        """
        limits = [limit for limit in (config.max_positions, positions) if limit]
        token_bs, mask_bs, segment_bs = self.batch(texts, min(limits, default=0))
        if empty := [text for text, real_s in zip(texts, mask_bs, strict=True) if not real_s.any()]:
            raise ValueError(f"a text must have a token; got {empty[0]!r:.100}")
        if config.segments and (most := int(segment_bs.max(initial=0))) >= config.segments:
            raise ValueError(f"a pair needs {most + 1} segments (type_vocab_size); the model has {config.segments}")
        return token_bs, mask_bs, segment_bs if config.segments else None

    def id_of(self, name: str) -> int | None:
        """Returns the id of a special token, such as mask_token; None if there is none."""
        token = self._settings.get(name)
        return None if token is None else self._inner.token_to_id(token)

    def is_byte(self, id_: int) -> bool:
        """Whether a token is a byte of a character that has no token."""
        return _BYTE.fullmatch(self._inner.id_to_token(int(id_)) or "") is not None

    def second(self, pair: tuple[str, str], positions: int) -> int:
        """Returns where the second text begins in the row that `batch` makes of a pair; the row's length if nothing of it is left."""
        (row,) = self._cut([pair], positions)
        return row.sequence_ids.index(1) if 1 in row.sequence_ids else len(row.ids)

    def _cut(self, texts: Sequence[str | tuple[str, str]], positions: int) -> list[Any]:
        """Returns the rows of `batch` before they are padded."""
        own = self._settings.get("model_max_length", self._settings.get("max_len"))
        limits = [limit for limit in (positions, own) if isinstance(limit, (int, float)) and 0 < limit < _UNLIMITED]
        if limits:
            with failures():
                self._inner.enable_truncation(int(min(limits)), direction=self._settings.get("truncation_side", "right"))
        try:
            return self._encoded(texts)
        finally:
            self._inner.no_truncation()

    def _encoded(self, texts: Sequence[str | tuple[str, str]], whole: bool = False) -> list[Any]:
        """Returns texts and pairs, uncut. Raises ValueError on one that the tokenizer cannot read, or the model."""
        try:
            letters = sum(len("".join(text)) for text in texts)
            found = list(within_time(lambda: self._inner.encode_batch([*texts], add_special_tokens=not whole), letters))
        except ValueError as error:
            raise ValueError(f"the tokenizer cannot read the text: {error}") from None
        if self._vocabulary is None:
            return found
        if beyond := [id_ for row in found for id_ in row.ids if id_ >= self._vocabulary]:
            raise ValueError(f"a text must have tokens of the model, 0 .. {self._vocabulary - 1}; got {self.words(beyond)[0]}, {beyond[0]}")
        return found


class Pieces:
    """The text of an answer, piece by piece as its tokens come: a piece ends with a whole character, and not within a run of bytes, which
    together are characters or none.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, list(prompt)
        self._told = tokenizer.text(prompt)

    def add(self, id_: int) -> str:
        """Adds a token and returns the text that it completes, which may be empty."""
        self._ids.append(id_)
        text = self._tokenizer.text(self._ids)
        return "" if text.endswith("\ufffd") or self._tokenizer.is_byte(id_) else self._new(text)

    def end(self) -> str:
        """Returns the rest when no token follows."""
        return self._new(self._tokenizer.text(self._ids))

    def _new(self, text: str) -> str:
        """Returns what follows the text before, or as much of it as is still there: tokens may change how those before them are written."""
        told, self._told = self._told, text
        return text[common_length(told, text) :]


def _fits(size: int, vocabulary: int) -> bool:
    """Whether a tokenizer of that size is of a model with that vocabulary: they are equal, but for rounding up to a multiple, as tables are
    for speed, and for half a percent, by which published folders differ.
    """
    rounded = (-(-size // multiple) * multiple for multiple in (1, 8, 16, 32, 64, 128))
    return vocabulary in rounded or abs(vocabulary - size) <= vocabulary // 200
