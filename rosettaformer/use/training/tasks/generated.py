"""Generated tasks: numbers in words, and random strings to copy or reverse."""

import abc
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reference_numpy.suggestions import known

from . import Data, Pair, Task, split

MOST_NUMBERS = 1_000_000  # num2words spells these in minutes
MOST_LETTERS = 20_000_000  # letters drawn at once for an epoch


@dataclass(frozen=True, kw_only=True)
class NumberWords(Task):
    """The numbers 0 .. limit, spelled by num2words. Held-out numbers never appear in training."""

    name: ClassVar[str] = "number-words"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 400, "batch_tokens": 2048, "buckets": 1, "warmup": 1000, "steps": 800, "validate_every": 200, "save_every": 50,
    }  # fmt: skip
    from_language: str = "es"
    to_language: str = "en"
    limit: int = 9_999

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit < 0:
            raise ValueError(f"limit must be at least 0; got {self.limit}")
        if self.limit > MOST_NUMBERS:
            raise ValueError(f"limit must be at most {MOST_NUMBERS}; got {self.limit}")

    def data(self) -> Data:
        spelled = (_spell(language, self.limit) for language in (self.from_language, self.to_language))
        return split(list(zip(*spelled, strict=True)), self.held_out, self.seed)


def _spell(language: str, limit: int) -> list[str]:
    from num2words import CONVERTER_CLASSES, num2words

    known("a language", [language], sorted(CONVERTER_CLASSES))
    try:
        return [num2words(number, lang=language) for number in range(limit + 1)]
    except (NotImplementedError, OverflowError, IndexError, KeyError) as error:
        raise ValueError(f"num2words cannot spell every number up to {limit} in {language!r}: {error!r}") from None


@dataclass(frozen=True, kw_only=True)
class Strings(Task):
    """Random strings of 1 to `length` characters; all lengths are equally likely.

    fresh: draws new strings for every epoch. Held-out strings appear in no epoch.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 0, "warmup": 2000, "batch_tokens": 1024, "steps": 3000, "dropout": 0.0, "smoothing": 0.0, "clip_norm": 1.0,
    }  # fmt: skip
    length: int = 10
    alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789"
    size: int = 10_000
    fresh: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in (("length", self.length), ("size", self.size)):
            if value < 1:
                raise ValueError(f"{option} must be at least 1; got {value}")
        if (letters := self.length * (2 * self.held_out + self.size)) > MOST_LETTERS:
            raise ValueError(f"length * (size + 2 * held_out) must be at most {MOST_LETTERS} letters; got {letters}")
        if not self.alphabet or len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet.isprintable():
            raise ValueError(f"alphabet must consist of different printable characters; got {self.alphabet!r}")
        needed = 2 * (2 * self.held_out + self.size)  # makes most draws new
        if len(self.alphabet) ** self.length < needed:
            raise ValueError(
                f"alphabet and length must allow at least {needed} strings for size and held_out; "
                f"got {len(self.alphabet)} characters and length {self.length}"
            )

    @abc.abstractmethod
    def answer(self, text: str) -> str:
        """Returns the target of a source string."""

    def data(self) -> Data:
        pool = self._draw(0, 2 * self.held_out + self.size, ())
        # shuffled, since short strings come first, and held-out strings must be like the others
        pool = [pool[index] for index in np.random.default_rng((self.seed, 1)).permutation(len(pool))]
        validation, test, train = np.split(np.array(pool), [self.held_out, 2 * self.held_out])
        hidden, fixed = {*validation.tolist(), *test.tolist()}, self._pairs(train.tolist())

        def epoch(number: int) -> Sequence[Pair]:
            return self._pairs(self._draw(2 + number, self.size, hidden)) if self.fresh else fixed

        return Data(epoch, self._pairs(validation.tolist()), self._pairs(test.tolist()))

    def _pairs(self, texts: Sequence[str]) -> list[Pair]:
        return [(text, self.answer(text)) for text in texts]

    def _draw(self, stream: int, count: int, hidden: Container[str]) -> list[str]:
        """Draws `count` different strings, none of them hidden, from a separate random stream."""
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
    """The target is the source itself."""

    name: ClassVar[str] = "copy"

    def answer(self, text: str) -> str:
        return text


class Reverse(Strings):
    """The target is the reversed source."""

    name: ClassVar[str] = "reverse"

    def answer(self, text: str) -> str:
        return text[::-1]
