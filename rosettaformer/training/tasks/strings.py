"""Random strings, to be copied or reversed: the smallest tasks that need attention."""

import abc
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .task import Data, Pair, Task

__all__ = ["Copy", "Reverse"]

MOST = 20_000_000  # letters of an epoch, which are drawn at once


@dataclass(frozen=True, kw_only=True)
class Strings(Task):
    """Strings of 1 .. length characters; every length is as likely. fresh: other strings in every epoch.

    Held-out strings appear in no epoch.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 0, "warmup": 2000, "batch_tokens": 1024, "steps": 3000, "dropout": 0.0, "smoothing": 0.0, "clip": 1.0,
    }  # fmt: skip
    length: int = 10
    alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789"
    size: int = 10_000
    fresh: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in (("length", self.length), ("size", self.size)):
            if value < 1:
                raise ValueError(f"--{option} must be at least 1; got {value}")
        if (letters := self.length * (2 * self.held_out + self.size)) > MOST:
            raise ValueError(f"--length times the strings of --size and twice --held-out must be at most {MOST} letters; got {letters}")
        if not self.alphabet or len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet.isprintable():
            raise ValueError(f"--alphabet must be different printable characters; got {self.alphabet!r}")
        needed = 2 * (2 * self.held_out + self.size)  # so that most draws are new ones
        if len(self.alphabet) ** self.length < needed:
            raise ValueError(
                f"--alphabet and --length must allow {needed} strings for --size and --held-out; "
                f"got {len(self.alphabet)} characters and length {self.length}"
            )

    @abc.abstractmethod
    def answer(self, text: str) -> str:
        """What the string becomes."""

    def data(self) -> Data:
        pool = self._draw(0, 2 * self.held_out + self.size, ())
        # in random order, since the few short strings are drawn first, and those held out shall be like those that are not
        pool = [pool[index] for index in np.random.default_rng((self.seed, 1)).permutation(len(pool))]
        validation, test, train = np.split(np.array(pool), [self.held_out, 2 * self.held_out])
        hidden, fixed = {*validation.tolist(), *test.tolist()}, self._pairs(train.tolist())

        def epoch(number: int) -> Sequence[Pair]:
            return self._pairs(self._draw(2 + number, self.size, hidden)) if self.fresh else fixed

        return Data(epoch, self._pairs(validation.tolist()), self._pairs(test.tolist()))

    def score(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Exact match alone: BLEU looks at words, and these have none."""
        scores = super().score(answers, references)
        return {"exact_match": scores["exact_match"]}

    def _pairs(self, texts: Sequence[str]) -> list[Pair]:
        return [(text, self.answer(text)) for text in texts]

    def _draw(self, stream: int, count: int, hidden: Container[str]) -> list[str]:
        """That many different strings of which none is hidden, from a random stream of its own."""
        rng = np.random.default_rng((self.seed, stream))
        letters = np.array(list(self.alphabet))
        found: dict[str, None] = {}
        while len(found) < count:
            lengths = rng.integers(1, self.length + 1, count)
            texts = map("".join, letters[rng.integers(0, len(letters), (count, self.length))])
            drawn = (text[:size] for text, size in zip(texts, lengths, strict=True))
            found |= dict.fromkeys(text for text in drawn if text not in hidden)
        return list(found)[:count]


class Copy(Strings):
    """The answer is the string itself."""

    name: ClassVar[str] = "copy"

    def answer(self, text: str) -> str:
        return text


class Reverse(Strings):
    """The answer is the string backwards."""

    name: ClassVar[str] = "reverse"

    def answer(self, text: str) -> str:
        return text[::-1]
