"""Texts as token ids: byte-pair encoding over bytes (Sennrich et al. 2016), trained on the training pairs and stored with the run."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .schema import digest
from .tasks import Pair

PADDING, START, END = range(3)
LIMIT, RATE = 8.0, 20_000  # seconds for a call of the package tokenizers, and letters for which there is a second more
T = TypeVar("T")
_SPECIAL = 3  # the special ids; a tokenizer's id is shifted by their number, so that no text can spell a special token


class Tokens:
    """One vocabulary for both sides. Its alphabet is the 256 bytes, so that every text has ids, and the ids give it back exactly.

    text: the tokenizer's JSON, as returned by `str(tokens)`. digest: a fingerprint; tokens with equal fingerprints give equal ids.
    vocabulary: the number of ids, special ones included.
    """

    def __init__(self, text: str) -> None:
        from tokenizers import Tokenizer

        self._text, self.digest = text, digest(text)
        try:
            with _failures():
                self._tokenizer = Tokenizer.from_str(text)
        except ValueError as error:
            raise ValueError(f"the tokens must be a tokenizer's JSON; got {text[:40]!r}: {error}") from None
        self.vocabulary: int = _SPECIAL + self._tokenizer.get_vocab_size()

    @classmethod
    def train(cls, pairs: Iterable[Pair], vocabulary: int) -> "Tokens":
        """Trains tokens of a vocabulary of at most that size; if it leaves no room for a merge, every token is a byte."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        size = max(vocabulary - _SPECIAL, len(alphabet))
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator((text for pair in pairs for text in pair), trainer)
        return cls(tokenizer.to_str())

    def __str__(self) -> str:
        return self._text

    def source(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of source texts, each with END: no source is empty."""
        return [[*ids, END] for ids in self._encode(texts)]

    def target(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of target texts, each from START to END."""
        return [[START, *ids, END] for ids in self._encode(texts)]

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of ids; special ids have none, and bytes that are not UTF-8 become U+FFFD."""
        own = [int(id_) - _SPECIAL for id_ in ids if id_ >= _SPECIAL]
        (text,) = _within_time(lambda: self._tokenizer.decode_batch([own], skip_special_tokens=False), 4 * len(own))
        return text

    def words(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each id, for display."""
        special = {PADDING: "(padding)", START: "(start)", END: "(end)"}
        return [special.get(int(id_)) or self.text([id_]) for id_ in ids]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = _within_time(lambda: self._tokenizer.encode_batch([*texts]), sum(map(len, texts)))
        return [[id_ + _SPECIAL for id_ in encoding.ids] for encoding in found]


def _within_time(call: Callable[[], T], letters: int = 0) -> T:
    """Returns what the call of the package returns, which must release the interpreter's lock. letters: how many it reads.

    Raises ValueError if it fails, panics or takes too long.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            errors.append(error)

    limit = LIMIT + letters / RATE
    worker = threading.Thread(target=run, daemon=True)
    with _without_panics():
        worker.start()
        worker.join(limit)
    if worker.is_alive():
        raise ValueError(f"it did not end within {limit:.0f} s: a regular expression of the tokenizer may take forever")
    if errors:
        raise ValueError(_said(errors[0])) from None
    return found[0]


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Raises ValueError for whatever the package raises in the block, a panic too."""
    try:
        with _without_panics():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises Exception itself; its panics derive from BaseException
        raise ValueError(_said(error)) from None


def _said(error: BaseException) -> str:
    """Returns the message of an error of the package."""
    return f"{' '.join(str(error).split()):.300}" or type(error).__name__


@contextlib.contextmanager
def _without_panics() -> Iterator[None]:
    """Keeps from standard error what Rust writes there of a panic, with places in its source."""
    try:
        before = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nothing: Any = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
