"""Small immutable values that functions and modules pass to each other."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from reference_numpy import checks

from . import mask

__all__ = ["Drop", "Heads", "Ids", "Text"]


class Heads(NamedTuple):
    """Queries, keys and values by head: h query heads share g key and value heads.

    sink_h: the score of each head's sink (SINK); None: there is none.
    """

    query_bthk: tf.Tensor
    key_bsgk: tf.Tensor
    value_bsge: tf.Tensor
    sink_h: tf.Tensor | None = None


class Drop(NamedTuple):
    """Dropout of the attention weights (DROPOUT).

    keep_bhts: True = keep; None drops nothing. rate: the probability of being dropped; kept weights
    are scaled up by `1 / (1 - rate)`.
    """

    keep_bhts: tf.Tensor | None = None
    rate: float = 0.0


class Text(NamedTuple):
    """One side of a model's input.

    ids: `b t`, or soft one-hot rows `b t v`. mask: True = real token; None: the mask that Keras
    attached to the ids, or every id but the padding id. segment: of every token; None: 0.
    """

    ids: tf.Tensor
    mask: tf.Tensor | None = None
    segment: tf.Tensor | None = None

    @classmethod
    def of(
        cls,
        ids: "Ids | list[tf.Tensor] | None",
        mask: tf.Tensor | None = None,
        segment: tf.Tensor | None = None,
    ) -> "Text | None":
        """Returns a text from ids, mask and segments; a text unchanged; None if all are None."""
        if isinstance(ids, Text) or (ids is None and mask is None and segment is None):
            return ids
        if isinstance(ids, list) and len(ids) == 3:  # a functional model turns a text into a list
            return cls._make(ids)
        return cls(ids, mask, segment)

    def split(self, lengths: Sequence[int]) -> "Iterator[Text]":
        """Yields a target in parts of these lengths. Raises ValueError unless they are at least 1
        and add up to its length, and if the mask does not match.
        """
        checks.check_splits(lengths, self.ids.shape)
        mask.check("target mask", self.mask, self.ids.shape[:2])
        for end, length in zip(accumulate(lengths), lengths, strict=True):
            part = slice(end - length, end)
            yield Text(self.ids[:, part], None if self.mask is None else self.mask[:, part])


Ids: TypeAlias = Text | tf.Tensor  # a text, or only its ids
