"""The tokenizer of a folder: texts and conversations to ids, and ids to texts."""

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

STARTING, LIMIT = 60.0, 8.0  # seconds for the start of the process, and for a call
LETTERS, BYTES = 20_000, 1 << 20  # letters of a call, and bytes of files, for which there is a second more
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OBJECTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_numbers = itertools.count()
_children: dict[int, Child] = {}  # by process, since a fork must not talk to the child of its parent

Text = str | tuple[str, str]  # a text or a pair of texts
Inputs = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # ids, masks and segments of an encoder


class Batch(NamedTuple):
    """Texts padded to the longest: ids, masks of real tokens, and the segment of each, 0 if the tokenizer has none."""

    token_bs: np.ndarray
    mask_bs: np.ndarray
    segment_bs: np.ndarray


class Tokenizer:
    """The tokenizer that `transformers` reads from a folder.

    vocabulary: the number of the model's tokens; None if unknown. entries: the model's config.json.
    chat: whether the folder has a chat template.
    Raises ValueError if the folder has no tokenizer that can be read, and if it has another number of tokens.
    """

    def __init__(self, folder: Path, vocabulary: int | None, entries: Mapping[str, Any]) -> None:
        files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
        if not files:
            raise ValueError(f"{folder} has no tokenizer: none of {', '.join(VOCABULARIES)}")
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
        """Returns the ids of a text that is to be continued."""
        return self._known(self._ask("encode", json.dumps(text), letters=len(text), failing="the tokenizer cannot read the text"))

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the ids that the model continues with the answer to these messages.

        Raises ValueError on messages that the chat template refuses.
        """
        text = json.dumps(messages)
        return self._known(self._ask("chat", text, letters=len(text), failing="the chat template does not take the messages"))

    def words(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token; a token that is no whole character is shown as the vocabulary writes it."""
        return list(self._ask("words", _listed(ids))[1])

    def is_byte(self, id_: int) -> bool:
        """Whether a token is a byte of a character that has no token."""
        return _BYTE.fullmatch(self._ask("words", _listed([id_]))[0][0]) is not None

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """Returns the text of ids, without special tokens unless `special`."""
        return str(self._ask("decode", _listed(ids), special, letters=4 * len(ids)))

    def batch(self, texts: Sequence[Text], positions: int) -> Batch:
        """Encodes texts and pairs of texts, padded: with special tokens, cut to the positions
        (0: not cut) or the tokenizer's own limit, the longer text of a pair first.
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

    def second(self, pair: tuple[str, str], positions: int) -> int:
        """Returns where the second text begins in the row that `batch` makes of a pair; the row's length if nothing of it is left."""
        return int(self._rows([pair], positions)[0][2])

    def id_of(self, name: str) -> int | None:
        """Returns the id of a special token, such as mask_token; None if there is none."""
        id_: int | None = self._special.get(name)
        return id_

    def _rows(self, texts: Sequence[Text], positions: int) -> list[tuple[list[int], list[int], int]]:
        letters = sum(len("".join(text)) for text in texts)
        rows: list[tuple[list[int], list[int], int]]
        rows = self._ask("rows", json.dumps(texts), positions, letters=letters, failing="the tokenizer cannot read the text")
        self._known([id_ for ids, *_ in rows for id_ in ids])
        return rows

    def _known(self, ids: list[int]) -> list[int]:
        """Returns the ids. Raises ValueError if the model lacks one."""
        if self._vocabulary is not None and (beyond := [id_ for id_ in ids if id_ >= self._vocabulary]):
            raise ValueError(f"a text must have tokens of the model, 0 .. {self._vocabulary - 1}; got {self.words(beyond)[0]}, {beyond[0]}")
        return ids

    def _ask(self, method: str, *arguments: Any, letters: int = 0, failing: str = "the tokenizer fails") -> Any:
        """Returns the answer of the process. Raises ValueError, whose message begins with `failing`, if it fails or takes too long."""
        limit = LIMIT + letters / LETTERS + self._seconds
        child = _child()
        child.ask(method, *arguments, *self._opened, limit=limit)
        kind, answer = child.answer(limit)
        if kind == "hang":
            answer = f"it did not end within {limit:.0f} s"
        if kind != "made":
            raise ValueError(f"{failing}: {answer}")
        return json.loads(answer.tobytes())


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


def common_length(first: str, second: str) -> int:
    """Returns the length of the longest text that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(first), len(second)))


def messages_of(text: str, system: str | None = None) -> list[Mapping[str, Any]]:
    """Returns the messages of a text: a conversation, if it is a JSON list of objects with roles; otherwise one message of the user.

    system: the first message, by the system. Raises ValueError if the conversation has one, too.
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
        raise ValueError("the conversation already has a message of the system; leave out --system")
    return [{"role": "system", "content": system}, *messages]


def _child() -> Child:
    """Returns the process that all tokenizers share. Raises ValueError if it cannot start."""
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
    """Whether a tokenizer with so many tokens, with and without added ones, is of a model with that
    vocabulary: it may be rounded up to a multiple, for speed, and published folders differ by half a percent.
    """
    rounded = (-(-size // multiple) * multiple for size in (own, every) for multiple in (1, 8, 16, 32, 64, 128))
    return own <= vocabulary <= every or vocabulary in rounded or abs(vocabulary - every) <= vocabulary // 200
