"""Batches of few fixed shapes, in an order that seed and epoch alone decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .tokens import PADDING

__all__ = ["Batch", "Buckets", "Example", "Group", "Shape", "pad"]

Example = tuple[list[int], list[int]]  # ids of the source; ids of the target from START to END
Batch = tuple[np.ndarray, np.ndarray]  # source `b s`, target `b t`


@dataclass(frozen=True)
class Shape:
    """The shape of every batch of a bucket."""

    rows: int
    source: int
    target: int

    def fits(self, example: Example) -> bool:
        return len(example[0]) <= self.source and len(example[1]) <= self.target


Group = tuple[Shape, list[Example]]  # a batch to be: the arguments of `pad`


class Buckets:
    """The shapes that examples are batched in: each holds about `tokens` tokens of the longer side, and rows in multiples of `multiple`,
    of which no batch has more than all examples need.

    The bounds are quantiles of the examples' lengths, so that a compiled step is compiled `count` times at most and little is padded.
    """

    def __init__(self, examples: Sequence[Example], tokens: int, multiple: int = 1, count: int = 4) -> None:
        if not examples:
            raise ValueError("there is nothing to make batches of")
        lengths = np.sort([[len(source), len(target)] for source, target in examples], axis=0)
        count = min(count, len(examples))
        last = [int(len(lengths) * (index + 1) / count) - 1 for index in range(count)]
        bounds = sorted({(int(source), int(target)) for source, target in lengths[np.maximum(last, 0)]})
        most = -(-len(examples) // multiple)  # parts of a batch that have rows
        self.shapes = [Shape(min(max(tokens // max(bound) // multiple, 1), most) * multiple, *bound) for bound in bounds]

    def epoch(self, examples: Sequence[Example], seed: int, epoch: int) -> list[Group]:
        """The batches of an epoch, to be padded. Each example is in one of them, or in none where it is longer than every shape.

        What does not fill a batch of its bucket moves to the next larger one; rows that are padding throughout fill the last batch.
        """
        rng = np.random.default_rng((seed, epoch))
        groups = [*self.groups([examples[index] for index in rng.permutation(len(examples))])]
        return [groups[index] for index in rng.permutation(len(groups))]

    def groups(self, examples: Sequence[Example]) -> Iterator[Group]:
        """The batches of examples in their order, the smaller shapes first, to be padded."""
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
    """The examples as one batch of that shape; rows without an example are padding throughout."""
    source, target = (np.full((shape.rows, length), PADDING, np.int32) for length in (shape.source, shape.target))
    for row, (source_ids, target_ids) in enumerate(examples):
        source[row, : len(source_ids)] = source_ids
        target[row, : len(target_ids)] = target_ids
    return source, target
