"""Encodes a task's pairs, batches them in few shapes, and finds the batch at any position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .tasks import Data, Pair
from .tokens import PADDING, Tokens

Example = tuple[list[int], list[int]]  # ids of the source; ids of the target from START to END
Batch = tuple[np.ndarray, np.ndarray]  # source `b s`, target `b t`


@dataclass(frozen=True)
class Shape:
    """The shape of a bucket's batches."""

    rows: int
    source: int
    target: int

    def fits(self, example: Example) -> bool:
        return len(example[0]) <= self.source and len(example[1]) <= self.target


Group = tuple[Shape, list[Example]]  # a batch to build: the arguments of `pad`
SHORTEST = 16


def padded_length(length: int) -> int:
    """Rounds a length up to 16, 32, 64, ..., so that a compiled backend sees few lengths."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


class Buckets:
    """The shapes of batches, each with about `tokens` tokens on the longer side.

    The number of rows is a multiple of `multiple`, and at most what all examples need. The bounds
    are quantiles of the examples' lengths: a step compiles at most `count` times, with little
    padding.
    """

    def __init__(self, examples: Sequence[Example], tokens: int, multiple: int = 1, count: int = 4) -> None:
        if not examples:
            raise ValueError("there are no examples to make batches of")
        lengths = np.sort([[len(source), len(target)] for source, target in examples], axis=0)
        count = min(count, len(examples))
        last = [int(len(lengths) * (index + 1) / count) - 1 for index in range(count)]
        bounds = sorted({(int(source), int(target)) for source, target in lengths[np.maximum(last, 0)]})
        most = -(-len(examples) // multiple)  # multiples of rows that all examples fill
        self.shapes = [Shape(min(max(tokens // max(bound) // multiple, 1), most) * multiple, *bound) for bound in bounds]

    def epoch(self, examples: Sequence[Example], seed: int, epoch: int) -> list[Group]:
        """Returns the batches of an epoch, as arguments of `pad`; drops examples that are too long.

        Examples that do not fill a batch move to the next larger bucket; padding fills the last
        batch.
        """
        rng = np.random.default_rng((seed, epoch))
        groups = [*self.groups([examples[index] for index in rng.permutation(len(examples))])]
        return [groups[index] for index in rng.permutation(len(groups))]

    def groups(self, examples: Sequence[Example]) -> Iterator[Group]:
        """Yields batches of examples in order, smaller shapes first, as arguments of `pad`."""
        waiting: list[Example] = []
        rest = list(examples)
        for shape in self.shapes:
            waiting += [example for example in rest if shape.fits(example)]
            rest = [example for example in rest if not shape.fits(example)]
            while len(waiting) >= shape.rows:
                yield shape, waiting[: shape.rows]
                del waiting[: shape.rows]
        if waiting:
            yield self.shapes[-1], waiting


def pad(shape: Shape, examples: Sequence[Example]) -> Batch:
    """Builds a batch of a shape; missing rows are padding."""
    sources, targets = ([example[side] for example in examples] for side in (0, 1))
    return rows(sources, shape.rows, shape.source), rows(targets, shape.rows, shape.target)


def rows(texts: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """Pads texts to `count` rows of a length; missing rows are padding."""
    result = np.full((count, length), PADDING, np.int32)
    for row, ids in zip(result, texts, strict=False):
        row[: len(ids)] = ids
    return result


@dataclass(frozen=True)
class Position:
    """The position of a run in its data: the next batch."""

    epoch: int = 0
    batch: int = 0


class Corpus:
    """The examples of a task in batches; no side is longer than max_length tokens.

    first_epoch: the examples of epoch 0. longest: the largest shape. left_out: the numbers of pairs
    too long for training, in the first epoch, and for validation. Raises ValueError if no pair is
    left for training or validation.
    """

    def __init__(
        self, data: Data, tokens: Tokens, *, batch_tokens: int, buckets: int, max_length: int, microbatches: int, seed: int
    ) -> None:
        self._data, self._tokens, self._max_length, self._seed = data, tokens, max_length, seed
        self._pairs: Sequence[Pair] = data.epoch(0)
        self.first_epoch = self._encode(self._pairs)
        if not self.first_epoch:
            raise ValueError(f"the training set is empty: no pair has at most {max_length} tokens per side. Raise --data max_length=N")
        if microbatches > len(self.first_epoch):
            raise ValueError(f"microbatches must be at most the number of pairs, {len(self.first_epoch)}; got {microbatches}")
        self.buckets = Buckets(self.first_epoch, batch_tokens, microbatches, buckets)
        self.longest = longest = self.buckets.shapes[-1]
        self.validation = [example for example in self._encode(data.validation) if longest.fits(example)]
        if not self.validation:
            raise ValueError(f"the validation set is empty: no pair has at most {longest.source} and {longest.target} tokens")
        self.left_out = (len(self._pairs) - len(self.first_epoch), len(data.validation) - len(self.validation))
        self._groups: tuple[int, list[Group]] | None = None

    def batch(self, position: Position) -> Batch:
        """Returns the batch at a position, which depends only on data, seed and position."""
        return pad(*self._epoch(position.epoch)[position.batch])

    def after(self, position: Position) -> Position:
        """Returns the next position."""
        last = position.batch + 1 == len(self._epoch(position.epoch))
        return Position(position.epoch + 1) if last else Position(position.epoch, position.batch + 1)

    def holds(self, position: Position, steps: int) -> bool:
        """Whether a run can be at a position after `steps` steps, and has a batch there.

        Every step takes a batch, and every epoch has at least one.
        """
        return position.epoch + position.batch <= steps and position.batch < len(self._epoch(position.epoch))

    def _epoch(self, number: int) -> list[Group]:
        if self._groups is None or self._groups[0] != number:
            pairs = self._data.epoch(number)
            examples = self.first_epoch if pairs is self._pairs else self._encode(pairs)
            groups = self.buckets.epoch(examples, self._seed, number)
            if not groups:
                raise ValueError(f"epoch {number} has no pair of at most {self.longest.source} and {self.longest.target} tokens")
            self._groups = number, groups
        return self._groups[1]

    def _encode(self, pairs: Sequence[Pair]) -> list[Example]:
        sources = self._tokens.source([source for source, _ in pairs])
        targets = self._tokens.target([target for _, target in pairs])
        return [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) <= self._max_length]


def answer_limits(examples: Sequence[Example]) -> dict[int, int]:
    """Returns padded source length -> most target tokens for sources up to that length."""
    longest: dict[int, int] = {}
    for source, target in examples:
        length = padded_length(len(source))
        longest[length] = max(longest.get(length, 1), len(target) - 2)  # without START and END
    limits, most = {}, 1
    for length in sorted(longest):
        limits[length] = most = max(most, longest[length])
    return limits
