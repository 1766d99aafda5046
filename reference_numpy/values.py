"""The small values that functions pass to each other; none of them ever changes."""

from __future__ import annotations

from typing import NamedTuple

from .arrays import Array, Mask
from .rotary import Rotation
from .scores import Scores

__all__ = ["Attending", "Drop", "Heads", "Memory", "Text"]


class Attending(NamedTuple):
    """How a layer's tokens attend. mask_bhts: boolean, True = may attend, or floating, added to the
    scores; scores: what becomes of them; rotation: of queries and keys; None does not rotate them.
    """

    mask_bhts: Mask = None
    scores: Scores = Scores()
    rotation: Rotation | None = None


class Heads(NamedTuple):
    """What an attention multiplies: h query heads, which share g heads of keys and values."""

    query_bthk: Array
    key_bsgk: Array
    value_bsge: Array


class Drop(NamedTuple):
    """Dropout of the attention weights. keep_bhts: boolean, True = keep; None drops nothing."""

    keep_bhts: Mask = None
    rate: float = 0.0


class Memory(NamedTuple):
    """What a decoder attends to: the encoder's output, and a mask that hides its padding."""

    vectors_bsd: Array
    mask_bhts: Mask = None


class Text(NamedTuple):
    """One side of a model's input. ids: `b t`, or soft one-hot rows `b t v`. mask_bt: boolean, True
    = real token; None: every id but the padding id. segment_bt: the segment of every token; None:
    0.
    """

    ids: Array
    mask_bt: Mask = None
    segment_bt: Array | None = None

    @classmethod
    def of(cls, text: Text | Array) -> Text:
        """The text itself, or ids without a mask and segments as one."""
        return text if isinstance(text, Text) else cls(text)
