"""Batches: few shapes, every example once, and an order decided by seed and epoch."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from messages import naming

from rosettaformer.use.training.corpus import Buckets, Corpus, Example, Position, answer_limits, pad
from rosettaformer.use.training.tasks import Data
from rosettaformer.use.training.tokens import PADDING, Tokens


def examples(count: int, longest: int = 30, seed: int = 0) -> list[Example]:
    """Returns distinct examples, numbered by their first id."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, longest + 1, (count, 2))
    return [([3 + index, *[2] * (source - 1)], [1] * (target - 1) + [2]) for index, (source, target) in enumerate(sizes)]


@pytest.mark.parametrize("tokens", [31, 100, 1000, 100_000])
@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_every_example_is_in_one_batch_of_one_of_few_shapes(count: int, tokens: int) -> None:
    given = examples(count)
    buckets = Buckets(given, tokens, multiple=2)
    batches = [pad(*group) for group in buckets.epoch(given, 0, 0)]
    shapes = {(*source.shape, target.shape[1]) for source, target in batches}
    assert len(buckets.shapes) <= 4
    assert shapes <= {(shape.rows, shape.source, shape.target) for shape in buckets.shapes}
    assert all(shape.rows % 2 == 0 for shape in buckets.shapes)
    assert all(shape.rows * max(shape.source, shape.target) <= tokens or shape.rows == 2 for shape in buckets.shapes)
    rows = [(row_s, row_t) for source, target in batches for row_s, row_t in zip(source, target, strict=True) if row_s.any()]
    found = Counter((tuple(s[s != PADDING]), tuple(t[t != PADDING])) for s, t in rows)
    assert found == Counter((tuple(s), tuple(t)) for s, t in given)


def test_one_batch_an_epoch_is_incomplete_and_padding_fills_it() -> None:
    given = examples(333)
    buckets = Buckets(given, 300)
    lonely = [(shape, group) for shape, group in buckets.epoch(given, 0, 0) if len(group) < shape.rows]
    assert len(lonely) <= 1
    source, target = pad(buckets.shapes[0], [])
    assert not source.any() and not target.any()


def test_seed_and_epoch_decide_the_order() -> None:
    given = examples(100)
    buckets = Buckets(given, 200)

    def order(seed: int, epoch: int) -> list[int]:
        return [example[0][0] for _, group in buckets.epoch(given, seed, epoch) for example in group]

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_what_is_longer_than_every_shape_is_in_no_batch() -> None:
    buckets = Buckets(examples(10, longest=5), 100)
    assert not list(buckets.groups([([3] * 9, [1, 2])]))


def corpus(fresh: bool = False) -> Corpus:
    def epoch(number: int) -> Sequence[tuple[str, str]]:
        return [(str(index + 60 * number * fresh), str(index)) for index in range(100, 150)]

    data = Data(epoch, [("7", "8")], [])
    tokens = Tokens.train(data.epoch(0), 0)
    return Corpus(data, tokens, batch_tokens=60, buckets=2, max_length=10, microbatches=1, seed=3)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_position_gives_the_same_batch_in_whatever_order_it_is_asked_for(fresh: bool) -> None:
    walked, position = corpus(fresh), Position()
    seen = []
    for _ in range(12):
        seen.append((position, walked.batch(position)))
        position = walked.after(position)
    assert position.epoch >= 2
    other = corpus(fresh)
    for place, batch in reversed(seen):
        for array, again in zip(batch, other.batch(place), strict=True):
            np.testing.assert_array_equal(array, again)


def small(data: Data, **changes: int) -> Corpus:
    return Corpus(data, Tokens.train([], 0), **{"batch_tokens": 9, "buckets": 1, "max_length": 6, "microbatches": 1, "seed": 0} | changes)


def test_pairs_that_are_too_long_are_left_out_and_counted() -> None:
    data = Data(lambda _: [("abc", "abc"), ("abcdefgh", "a"), ("a", "abcdefgh")], [("ab", "ab"), ("abcdefgh", "a")], [])
    found = small(data, batch_tokens=60, buckets=2)
    assert found.left_out == (2, 1)
    assert len(found.validation) == 1


def test_a_set_or_an_epoch_without_a_pair_that_fits_is_refused() -> None:
    fits, long = [("a", "a")], [("abcdefgh", "a")]
    for train, validation, message in ((long, fits, "training … set"), (fits, long, "validation … set")):
        with pytest.raises(ValueError, match=naming(message)):
            small(Data(lambda _, train=train: train, validation, []))
    found = small(Data(lambda number: [("a" * (1 + number), "b")], [("a", "b")], []))
    with pytest.raises(ValueError, match=naming("epoch … 1 … 2 … 3")):
        found.batch(Position(1))


def test_limits_of_answers_are_the_longest_that_training_saw() -> None:
    pairs: list[Example] = [([3] * 5, [1, 3, 3, 2]), ([3] * 40, [1, 3, 2]), ([3] * 16, [1, 3, 3, 3, 2])]
    assert answer_limits(pairs) == {16: 3, 64: 3}
