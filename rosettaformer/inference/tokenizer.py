"""The tokenizer of a folder: its tokenizer.json, vocab.json and merges.txt (byte-level BPE), or vocab.txt (WordPiece)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ..reading import read_json, read_text

__all__ = ["Batch", "Pieces", "Tokenizer"]

_UNLIMITED = 1_000_000  # a model_max_length of at least that says that there is none
_SPECIAL = ("unk_token", "bos_token", "eos_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_GPT2 = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")


class Batch(NamedTuple):
    """Texts, padded to the longest: ids, which of them are real, and the segment of each."""

    token_bs: np.ndarray
    mask_bs: np.ndarray
    segment_bs: np.ndarray


class Tokenizer:
    """Texts to ids and back, as `transformers` does with the files of the folder.

    vocabulary: the number of the model's tokens; None where it is not known.
    Raises ValueError where the folder has no tokenizer, where its files are damaged, and where it has another number of tokens.
    """

    def __init__(self, folder: Path, vocabulary: int | None) -> None:
        self._settings = _settings(folder)
        self._inner = _read(folder, self._settings)
        self._inner.no_padding()
        self._inner.no_truncation()
        size = 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)
        if vocabulary is not None and not _padded(size, vocabulary):
            raise ValueError(f"the tokenizer of {folder} must have the {vocabulary} tokens of the model; it has {size}")

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that is to be continued."""
        return list(self._inner.encode(text).ids)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself: as it is written in the vocabulary, where it is no whole characters in the bytes of a text."""
        written = [self._inner.id_to_token(int(id_)) or f"<{id_}>" for id_ in ids]
        if not isinstance(self._inner.decoder, decoders.ByteLevel):
            return written
        texts = [self._inner.decoder.decode([token]) for token in written]
        return [token if "\ufffd" in text else text for token, text in zip(written, texts, strict=True)]

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens, such as one that ends a text, are no part of it."""
        return str(self._inner.decode(list(ids)))

    def batch(self, texts: Sequence[str | tuple[str, str]], positions: int) -> Batch:
        """Texts and pairs of texts, with the tokens that the model puts between and around them, as `tokenizer(texts, truncation=True,
        padding=True)` gives them: cut to the positions (0: not cut) or the tokenizer's own limit, of a pair the longer text first.
        """
        found = self._encoded(texts, positions)
        width = max(len(row.ids) for row in found)
        left = self._settings.get("padding_side", "right") == "left"
        pad_id = self._inner.token_to_id(self._settings.get("pad_token", "")) or 0

        def padded(rows: list[list[int]], fill: int) -> np.ndarray:
            filled = [[*row, *[fill] * (width - len(row))] for row in rows]
            return np.array([[*row[len(given) :], *given] if left else row for row, given in zip(filled, rows, strict=True)])

        mask_bs = padded([row.attention_mask for row in found], 0).astype(bool)
        return Batch(padded([row.ids for row in found], pad_id), mask_bs, padded([row.type_ids for row in found], 0))

    def second(self, pair: tuple[str, str], positions: int) -> int:
        """The place of the second text's first token in the row that `batch` makes of a pair; its length where nothing of that is left."""
        (row,) = self._encoded([pair], positions)
        return row.sequence_ids.index(1) if 1 in row.sequence_ids else len(row.ids)

    def _encoded(self, texts: Sequence[str | tuple[str, str]], positions: int) -> list[tokenizers.Encoding]:
        """The rows of `batch` before they are padded."""
        own = self._settings.get("model_max_length")
        limits = [limit for limit in (positions, own) if isinstance(limit, (int, float)) and 0 < limit < _UNLIMITED]
        if limits:
            self._inner.enable_truncation(int(min(limits)), direction=self._settings.get("truncation_side", "right"))
        found = self._inner.encode_batch(list(texts))
        self._inner.no_truncation()
        return list(found)


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


def _settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, and special_tokens_map.json of special tokens; each of these as its text."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        entries = read_json(path) if path.is_file() else {}
        if not isinstance(entries, Mapping):
            raise ValueError(f"{path} must hold a JSON object; got {type(entries).__name__}")
        found |= {key: value for key, value in entries.items() if value is not None}
    for key in _SPECIAL:
        if isinstance(found.get(key), Mapping):
            found[key] = found[key].get("content")
        if not isinstance(found.get(key, ""), str):
            raise ValueError(f"{key} of the tokenizer in {folder} must be a text; got {found[key]!r:.100}")
    return found


def _read(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    kinds: tuple[tuple[tuple[str, ...], Callable[..., tokenizers.Tokenizer]], ...] = (
        (("tokenizer.json",), lambda file: tokenizers.Tokenizer.from_str(read_text(file, 1 << 27))),
        (("vocab.json", "merges.txt"), lambda vocabulary, merges: _byte_pairs(vocabulary, merges, settings)),
        (("vocab.txt",), lambda file: _word_pieces(file, settings)),
    )
    for names, make in kinds:
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            try:
                return make(*files)
            except Exception as error:  # tokenizers raises Exception itself
                raise ValueError(f"{' and '.join(names)} of {folder} are no tokenizer: {error}") from None
    needed = ", or ".join(" and ".join(names) for names, _ in kinds)
    raise ValueError(f"a folder with a tokenizer has {needed}; {folder} has none of them")


def _byte_pairs(vocabulary: Path, merges: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of GPT-2: bytes, merged by rank."""
    settings.update({**_GPT2, **settings})
    tokens, pairs = models.BPE.read_file(str(vocabulary), str(merges))
    inner = tokenizers.Tokenizer(models.BPE(tokens, pairs, fuse_unk=False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space", False)))
    inner.decoder = decoders.ByteLevel()
    return _with_special(inner, settings)


def _word_pieces(vocabulary: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of BERT: words, and the longest pieces of each."""
    settings.update({**_BERT, **settings})
    tokens = {line: index for index, line in enumerate(read_text(vocabulary).removesuffix("\n").split("\n"))}
    if lacking := [settings[key] for key in ("unk_token", "cls_token", "sep_token") if settings[key] not in tokens]:
        raise ValueError(f"it must have the tokens {', '.join(lacking)}")
    inner = tokenizers.Tokenizer(models.WordPiece(tokens, unk_token=settings["unk_token"]))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")
    ends = [settings["cls_token"], settings["sep_token"]]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{ends[0]}:0 $A:0 {ends[1]}:0",
        pair=f"{ends[0]}:0 $A:0 {ends[1]}:0 $B:1 {ends[1]}:1",
        special_tokens=[(token, tokens[token]) for token in ends],
    )
    return _with_special(inner, settings)


def _with_special(inner: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Special tokens are found whole in a text, where the vocabulary has them."""
    special = dict.fromkeys(settings[key] for key in _SPECIAL if key in settings)
    inner.add_special_tokens([token for token in special if inner.token_to_id(token) is not None])
    return inner
