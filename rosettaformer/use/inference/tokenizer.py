"""Encodes texts and conversations, and decodes ids, with the tokenizer of a folder."""

import atexit
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reference_numpy import TransformerConfig

from ...common.processes import Child
from ...common.reading import read_object

STARTING, LIMIT = 60.0, 8.0  # seconds to start the process, and per call
LETTERS, BYTES = 20_000, 1 << 20  # letters of text, and bytes of files, that add one second
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OBJECTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_numbers = itertools.count()
_children: dict[int, Child] = {}  # by process id, since a forked process must not use its parent's child

Text = str | tuple[str, str]  # a text or a pair of texts
Inputs = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # ids, masks and segments of an encoder


class Batch(NamedTuple):
    """Padded texts: ids, masks of real tokens, and segments (0 if the tokenizer has none)."""

    token_bs: np.ndarray
    mask_bs: np.ndarray
    segment_bs: np.ndarray


class Tokenizer:
    """The tokenizer that `transformers` loads from a folder.

    vocabulary: the model's vocabulary size; None if unknown. entries: the model's config.json.
    chat: whether the folder has a chat template. Raises ValueError if the folder has no readable
    tokenizer, or one for another vocabulary size.
    """

    def __init__(self, folder: Path, vocabulary: int | None, entries: Mapping[str, Any]) -> None:
        files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
        if not files:
            raise ValueError(f"{folder} has no tokenizer; it needs one of {', '.join(VOCABULARIES)}")
        for name in OBJECTS:
            read_object(folder / name, optional=True)
        kinds = (entries.get(name) for name in ("model_type", "tokenizer_class"))
        self._opened = (str(folder.resolve()), *(kind if isinstance(kind, str) else "" for kind in kinds), str(next(_numbers)))
        self._seconds = sum(file.stat().st_size for file in files) / BYTES
        facts = self._ask("facts", failing=f"the tokenizer of {folder} cannot be read")
        if vocabulary is not None and not _fits(facts["own"], facts["every"], vocabulary):
            raise ValueError(f"the tokenizer of {folder} must have the {vocabulary} tokens of the model; it has {facts['every']}")
        self.chat: bool = facts["chat"]
        self._special, self._left, self._segments = facts["special"], facts["left"], facts["segments"]
        self._vocabulary = vocabulary

    def prompt(self, text: str) -> list[int]:
        """Encodes a text to be continued."""
        return self._known(self._ask("encode", json.dumps(text), letters=len(text), failing="the tokenizer cannot read the text"))

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encodes messages with the chat template, so that the model continues with the answer.

        Raises ValueError on messages that the template rejects.
        """
        text = json.dumps(messages)
        return self._known(self._ask("chat", text, letters=len(text), failing="the chat template does not take the messages"))

    def words(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token, or its spelling if it is part of a character."""
        return list(self._ask("words", _listed(ids))[1])

    def is_byte(self, id_: int) -> bool:
        """Whether a token is a single byte of a character."""
        return _BYTE.fullmatch(self._ask("words", _listed([id_]))[0][0]) is not None

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """Decodes ids, by default without special tokens."""
        return str(self._ask("decode", _listed(ids), special, letters=4 * len(ids)))

    def batch(self, texts: Sequence[Text], positions: int) -> Batch:
        """Encodes and pads texts and pairs of texts, with special tokens.

        They are cut to `positions` (0: not) or the tokenizer's limit, the longer text of a pair
        first.
        """
        rows = self._rows(texts, positions)
        width, pad_id = max(len(ids) for ids, *_ in rows), self.id_of("pad_token") or 0

        def padded(values: Sequence[Sequence[int]], fill: int) -> np.ndarray:
            gaps = ([fill] * (width - len(row)) for row in values)
            return np.array([[*gap, *row] if self._left else [*row, *gap] for row, gap in zip(values, gaps, strict=True)], np.int64)

        mask_bs = padded([[1] * len(ids) for ids, *_ in rows], 0).astype(bool)
        segment_bs = padded([segments if self._segments else [0] * len(segments) for _, segments, _ in rows], 0)
        return Batch(padded([ids for ids, *_ in rows], pad_id), mask_bs, segment_bs)

    def read(self, texts: Sequence[Text], config: TransformerConfig, positions: int = 0) -> Inputs:
        """Like `batch`, but also cuts to an encoder's positions, and drops segments if it has none.

        Raises ValueError on a text without tokens, and on a pair if there is no second segment.
        """
        limits = [limit for limit in (config.max_positions, positions) if limit]
        token_bs, mask_bs, segment_bs = self.batch(texts, min(limits, default=0))
        if empty := [text for text, real_s in zip(texts, mask_bs, strict=True) if not real_s.any()]:
            raise ValueError(f"a text must have at least one token; got {empty[0]!r:.100}")
        if config.segments and (most := int(segment_bs.max(initial=0))) >= config.segments:
            raise ValueError(f"a pair needs {most + 1} segments (type_vocab_size); the model has {config.segments}")
        return token_bs, mask_bs, segment_bs if config.segments else None

    def second(self, pair: tuple[str, str], positions: int) -> int:
        """Returns where the second text of a pair starts in its row of `batch`."""
        return int(self._rows([pair], positions)[0][2])

    def id_of(self, name: str) -> int | None:
        """Returns the id of a special token, such as mask_token, or None."""
        id_: int | None = self._special.get(name)
        return id_

    def _rows(self, texts: Sequence[Text], positions: int) -> list[tuple[list[int], list[int], int]]:
        letters = sum(len("".join(text)) for text in texts)
        rows: list[tuple[list[int], list[int], int]]
        rows = self._ask("rows", json.dumps(texts), positions, letters=letters, failing="the tokenizer cannot read the text")
        self._known([id_ for ids, *_ in rows for id_ in ids])
        return rows

    def _known(self, ids: list[int]) -> list[int]:
        """Returns the ids. Raises ValueError on an id outside the model's vocabulary."""
        if self._vocabulary is not None and (beyond := [id_ for id_ in ids if id_ >= self._vocabulary]):
            raise ValueError(f"token ids must be from 0 to {self._vocabulary - 1} for this model; got {self.words(beyond)[0]}, {beyond[0]}")
        return ids

    def _ask(self, method: str, *arguments: Any, letters: int = 0, failing: str = "the tokenizer fails") -> Any:
        """Calls the tokenizer's process. Raises ValueError starting with `failing` if it fails."""
        limit = LIMIT + letters / LETTERS + self._seconds
        child = _child()
        child.ask(method, *arguments, *self._opened, limit=limit)
        kind, answer = child.answer(limit)
        if kind == "hang":
            answer = f"no result within {limit:.0f} s"
        if kind != "made":
            raise ValueError(f"{failing}: {answer}")
        return json.loads(answer.tobytes())


class Pieces:
    """Decodes a continuation piece by piece while its tokens arrive.

    A piece ends with a complete character, and never inside a run of byte tokens.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, list(prompt)
        self._told = tokenizer.text(prompt)

    def add(self, id_: int) -> str:
        """Adds a token and returns the text that is now complete; may be empty."""
        self._ids.append(id_)
        text = self._tokenizer.text(self._ids)
        return "" if text.endswith("\ufffd") or self._tokenizer.is_byte(id_) else self._new(text)

    def end(self) -> str:
        """Returns the remaining text after the last token."""
        return self._new(self._tokenizer.text(self._ids))

    def _new(self, text: str) -> str:
        """Returns the new text. A token may change the spelling of those before it."""
        told, self._told = self._told, text
        return text[common_length(told, text) :]


def common_length(first: str, second: str) -> int:
    """Returns the length of the common prefix of two texts."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(first), len(second)))


def messages_of(text: str, system: str | None = None) -> list[Mapping[str, Any]]:
    """Parses a conversation, a JSON list of objects with roles; other texts are one user message.

    system: a system message to add. Raises ValueError if the conversation already has one.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    of_conversation = isinstance(said, list) and bool(said) and all(isinstance(one, dict) and "role" in one for one in said)
    messages: list[Mapping[str, Any]] = said if of_conversation else [{"role": "user", "content": text}]
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise ValueError("the conversation already has a system message; remove it, or remove --system")
    return [{"role": "system", "content": system}, *messages]


def _child() -> Child:
    """Returns the process shared by all tokenizers. Raises ValueError if it cannot start."""
    found = _children.get(os.getpid())
    if found is None or not found.running:
        if found is not None:
            found.close()
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        found = _children[os.getpid()] = Child(f"{__package__}.tokenizer_process", "", 1, "the tokenizer", environment=variables)
        kind, said = found.answer(STARTING)
        if kind != "made":
            raise ValueError(said)
    return found


@atexit.register
def _close() -> None:
    if (child := _children.pop(os.getpid(), None)) is not None:
        child.close()


def _listed(ids: Sequence[int]) -> str:
    return json.dumps([int(id_) for id_ in ids])


def _fits(own: int, every: int, vocabulary: int) -> bool:
    """Whether a tokenizer fits a model's vocabulary. own, every: size without, with added tokens.

    Vocabularies are often rounded up for speed; published folders differ by half a percent.
    """
    rounded = (-(-size // multiple) * multiple for size in (own, every) for multiple in (1, 8, 16, 32, 64, 128))
    return own <= vocabulary <= every or vocabulary in rounded or abs(vocabulary - every) <= vocabulary // 200
