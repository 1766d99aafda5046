"""The tokenizer of a folder: texts to ids, alone or in batches, and back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import decoders, models

from reference_numpy import TransformerConfig

from . import tokenizer_files

__all__ = ["Batch", "Pieces", "Tokenizer"]

_UNLIMITED = 1_000_000  # a model_max_length of at least that says that there is none
_OF_PAIRS = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
# what clean_up_tokenization_spaces takes a space from, in this order
_CLEANED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")}}


Inputs = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # ids, masks and segments of an encoder


class Batch(NamedTuple):
    """Texts, padded to the longest: ids, which of them are real, and the segment of each: 0 where the tokenizer gives none to a model."""

    token_bs: np.ndarray
    mask_bs: np.ndarray
    segment_bs: np.ndarray


class Tokenizer:
    """Texts to ids and back, as `transformers` does with the files of the folder.

    vocabulary: the number of the model's tokens; None where it is not known. entries: what the model's config.json says.
    Raises ValueError where the folder has no tokenizer, where its files are damaged, and where it has another number of tokens.
    """

    def __init__(self, folder: Path, vocabulary: int | None, entries: Mapping[str, Any]) -> None:
        self._inner, self._settings, self._input_names, size = tokenizer_files.read(folder, entries)
        if vocabulary is not None and not _padded(size, vocabulary):
            raise ValueError(f"the tokenizer of {folder} must have the {vocabulary} tokens of the model; it has {size}")

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that is to be continued."""
        return list(self._encoded([text])[0].ids)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself: as it is written in the vocabulary, where it is no whole characters in the bytes of a text."""
        written = [self._inner.id_to_token(int(id_)) or f"<{id_}>" for id_ in ids]
        if not isinstance(self._inner.decoder, decoders.ByteLevel):
            return written
        texts = [self._inner.decoder.decode([token]) for token in written]
        return [token if "\ufffd" in text else text for token, text in zip(written, texts, strict=True)]

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of ids; special tokens, such as one that ends a text, are no part of it, unless `special`."""
        text = str(self._inner.decode(list(ids), skip_special_tokens=not special))
        pairs = isinstance(self._inner.model, models.BPE) and not self._settings.get(_OF_PAIRS, False)
        if self._settings.get("clean_up_tokenization_spaces", False) and not pairs:
            for spaced, clean in _CLEANED.items():
                text = text.replace(spaced, clean)
        return text

    def batch(self, texts: Sequence[str | tuple[str, str]], positions: int) -> Batch:
        """Texts and pairs of texts, with the tokens that the model puts between and around them, as `tokenizer(texts, truncation=True,
        padding=True)` gives them: cut to the positions (0: not cut) or the tokenizer's own limit, of a pair the longer text first.
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
        """As `batch`, for an encoder of that config: cut to its positions, or fewer; without segments where it has none.

        Raises ValueError on a text without a token, and on a pair for which there is no second segment.
        """
        limits = [limit for limit in (config.max_positions, positions) if limit]
        token_bs, mask_bs, segment_bs = self.batch(texts, min(limits, default=0))
        if empty := [text for text, real_s in zip(texts, mask_bs, strict=True) if not real_s.any()]:
            raise ValueError(f"a text must have a token; got {empty[0]!r:.100}")
        if config.segments and (most := int(segment_bs.max(initial=0))) >= config.segments:
            raise ValueError(f"a pair needs {most + 1} segments (type_vocab_size); the model has {config.segments}")
        return token_bs, mask_bs, segment_bs if config.segments else None

    def id_of(self, name: str) -> int | None:
        """The id of a special token, such as mask_token; None where there is none."""
        token = self._settings.get(name)
        return None if token is None else self._inner.token_to_id(token)

    def second(self, pair: tuple[str, str], positions: int) -> int:
        """The place of the second text's first token in the row that `batch` makes of a pair; its length where nothing of that is left."""
        (row,) = self._cut([pair], positions)
        return row.sequence_ids.index(1) if 1 in row.sequence_ids else len(row.ids)

    def _cut(self, texts: Sequence[str | tuple[str, str]], positions: int) -> list[Any]:
        """The rows of `batch` before they are padded."""
        own = self._settings.get("model_max_length", self._settings.get("max_len"))
        limits = [limit for limit in (positions, own) if isinstance(limit, (int, float)) and 0 < limit < _UNLIMITED]
        if limits:
            self._inner.enable_truncation(int(min(limits)), direction=self._settings.get("truncation_side", "right"))
        try:
            return self._encoded(texts)
        finally:
            self._inner.no_truncation()

    def _encoded(self, texts: Sequence[str | tuple[str, str]]) -> list[Any]:
        """Texts and pairs, whole. Raises ValueError on one that the tokenizer cannot read."""
        try:
            return list(self._inner.encode_batch(list(texts)))
        except Exception as error:  # tokenizers raises Exception itself
            raise ValueError(f"the tokenizer cannot read the text: {error}") from None


class Pieces:
    """The text of an answer, piece by piece as its tokens come: a piece ends with a whole character."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, list(prompt)
        self._told = tokenizer.text(prompt)

    def add(self, id_: int) -> str:
        """The text that the token completes, which may be none."""
        self._ids.append(id_)
        text = self._tokenizer.text(self._ids)
        return "" if text.endswith("\ufffd") else self._new(text)

    def end(self) -> str:
        """What is left when no token follows."""
        return self._new(self._tokenizer.text(self._ids))

    def _new(self, text: str) -> str:
        if not text.startswith(self._told):
            return ""
        piece, self._told = text[len(self._told) :], text
        return piece


def _padded(size: int, vocabulary: int) -> bool:
    """Whether the vocabulary is that size, or that size rounded up to a multiple, as tables are for speed."""
    return any(-(-size // multiple) * multiple == vocabulary for multiple in (1, 8, 16, 32, 64, 128))
