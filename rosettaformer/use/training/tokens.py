"""Encodes texts with byte-level byte-pair encoding (Sennrich et al. 2016), trained on the pairs."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .schema import digest
from .tasks import Pair

PADDING, START, END = range(3)
LIMIT, RATE = 8.0, 20_000  # seconds per call of the tokenizers package, and letters that add one second
T = TypeVar("T")
_SPECIAL = 3  # number of special ids; all others are shifted by it, so that no text can spell a special token


class Tokens:
    """One vocabulary for both sides. Its alphabet is the 256 bytes, so every text can be encoded.

    text: the tokenizer's JSON, as `str(tokens)` returns it. digest: a fingerprint, equal for equal
    encodings. vocabulary: the number of ids, including special ones.
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
        """Trains a vocabulary of at most this size, but at least one token per byte."""
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
        """Encodes source texts, each followed by END, so that none is empty."""
        return [[*ids, END] for ids in self._encode(texts)]

    def target(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes target texts, each between START and END."""
        return [[START, *ids, END] for ids in self._encode(texts)]

    def text(self, ids: Sequence[int]) -> str:
        """Decodes ids without special ones; bytes that are not UTF-8 become U+FFFD."""
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
    """Calls a function of the package, which must release the GIL. letters: the size of its input.

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
        raise ValueError(f"no result within {limit:.0f} s: a regular expression of the tokenizer may never end")
    if errors:
        raise ValueError(_said(errors[0])) from None
    return found[0]


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Converts every exception of the package, including panics, to ValueError."""
    try:
        with _without_panics():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises plain Exception; its panics are BaseException
        raise ValueError(_said(error)) from None


def _said(error: BaseException) -> str:
    """Returns the message of an exception of the package."""
    return f"{' '.join(str(error).split()):.300}" or type(error).__name__


@contextlib.contextmanager
def _without_panics() -> Iterator[None]:
    """Hides the messages of Rust panics on standard error."""
    try:
        before = os.dup(2)
    except OSError:  # standard error is closed
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
