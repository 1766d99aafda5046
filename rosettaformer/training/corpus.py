"""A task's pairs as ids, and the batch at every position of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from .answers import padded_length
from .batches import Batch, Buckets, Example, Group, pad
from .tasks import Data, Pair
from .tokens import Tokens

__all__ = ["BEGINNING", "Corpus", "Position", "answer_limits"]


@dataclass(frozen=True)
class Position:
    """Where a run is in its data: the batch that comes next."""

    epoch: int = 0
    batch: int = 0


BEGINNING = Position()


class Corpus:
    """The examples of a task, no side longer than max_length tokens, in batches.

    left_out: how many training pairs of the first epoch are longer, and how many of validation.
    Raises ValueError where nothing is left to train on or to validate on.
    """

    def __init__(
        self, data: Data, tokens: Tokens, *, batch_tokens: int, buckets: int, max_length: int, microbatches: int, seed: int
    ) -> None:
        self._data, self._tokens, self._max_length, self._seed = data, tokens, max_length, seed
        self._pairs: Sequence[Pair] = data.epoch(0)
        self._examples = self._encode(self._pairs)
        if not self._examples:
            raise ValueError(f"the training set is empty: no pair has at most {max_length} tokens on each side (--max-length)")
        if microbatches > len(self._examples):
            raise ValueError(f"--microbatches must be at most the pairs, {len(self._examples)}; got {microbatches}")
        self.buckets = Buckets(self._examples, batch_tokens, microbatches, buckets)
        longest = self.buckets.shapes[-1]
        self.validation = [example for example in self._encode(data.validation) if longest.fits(example)]
        if not self.validation:
            raise ValueError(f"the validation set is empty: no pair has at most {longest.source} and {longest.target} tokens")
        self.left_out = (len(self._pairs) - len(self._examples), len(data.validation) - len(self.validation))
        self._groups: tuple[int, list[Group]] | None = None

    @property
    def first_epoch(self) -> list[Example]:
        """The examples of epoch 0."""
        return self._examples

    @property
    def longest_source(self) -> int:
        """The most tokens of a source in batches."""
        return self.buckets.shapes[-1].source

    def batch(self, position: Position) -> Batch:
        """The batch at a position, a function of the data, the seed and the position alone."""
        return pad(*self._epoch(position.epoch)[position.batch])

    def after(self, position: Position) -> Position:
        """The position after that one."""
        last = position.batch + 1 == len(self._epoch(position.epoch))
        return Position(position.epoch + 1) if last else Position(position.epoch, position.batch + 1)

    def holds(self, position: Position, steps: int) -> bool:
        """Whether there is a batch at a position that so many steps may have led to, a batch and at least one an epoch."""
        return position.epoch + position.batch <= steps and position.batch < len(self._epoch(position.epoch))

    def _epoch(self, number: int) -> list[Group]:
        if self._groups is None or self._groups[0] != number:
            pairs = self._data.epoch(number)
            examples = self._examples if pairs is self._pairs else self._encode(pairs)
            groups = self.buckets.epoch(examples, self._seed, number)
            if not groups:
                longest = self.buckets.shapes[-1]
                raise ValueError(f"epoch {number} has no pair of at most {longest.source} and {longest.target} tokens")
            self._groups = number, groups
        return self._groups[1]

    def _encode(self, pairs: Sequence[Pair]) -> list[Example]:
        sources = self._tokens.source([source for source, _ in pairs])
        targets = self._tokens.target([target for _, target in pairs])
        return [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) <= self._max_length]


def answer_limits(examples: Sequence[Example]) -> dict[int, int]:
    """Padded source length -> the most tokens of an answer that training saw for a source of at most that length."""
    longest: dict[int, int] = {}
    for source, target in examples:
        length = padded_length(len(source))
        longest[length] = max(longest.get(length, 1), len(target) - 2)  # without START and END
    limits, most = {}, 1
    for length in sorted(longest):
        limits[length] = most = max(most, longest[length])
    return limits
