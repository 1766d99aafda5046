"""Small immutable values that functions and modules pass to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

__all__ = ["Drop", "Heads", "Text"]

Missing = TypeVar("Missing", bound=None)


class Heads(NamedTuple):
    """Queries, keys and values by head: h query heads share g key and value heads.

    sink_h: the score of each head's sink (SINK); None: there is none.
    """

    query_bthk: Tensor
    key_bsgk: Tensor
    value_bsge: Tensor
    sink_h: Tensor | None = None


class Drop(NamedTuple):
    """Dropout of the attention weights: by a keep mask, True = keep, or at random at this rate."""

    keep_bhts: Tensor | None = None
    rate: float = 0.0


class Text(NamedTuple):
    """One side of a model's input.

    ids: `b t`, or soft one-hot rows `b t v`. mask: boolean, True = real token; None: every id but
    the padding id. segment: of every token; None: 0.
    """

    ids: Tensor
    mask: Tensor | None = None
    segment: Tensor | None = None

    @classmethod
    def of(cls, text: Text | Tensor | Missing) -> Text | Missing:
        """Wraps a tensor of ids; returns a text or None unchanged."""
        return text if text is None or isinstance(text, Text) else Text(text)

    def split(self, lengths: Sequence[int]) -> Iterator[Text]:
        """Yields parts of these lengths, without segments."""
        end = 0
        for length in lengths:
            part = slice(end, end := end + length)
            yield Text(self.ids[:, part], None if self.mask is None else self.mask[:, part])
