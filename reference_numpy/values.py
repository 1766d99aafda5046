"""Small immutable values that functions pass to each other."""

from __future__ import annotations

from typing import NamedTuple

from .arrays import Array, Mask
from .rotary import Rotation
from .scores import Scores

__all__ = ["Attending", "Drop", "Heads", "Memory", "Text"]


class Attending(NamedTuple):
    """How the tokens of a layer attend.

    mask_bhts: boolean, True = may attend, or floating, added to the scores. scores: how they are
    treated. rotation: of queries and keys; None for no rotation.
    """

    mask_bhts: Mask = None
    scores: Scores = Scores()
    rotation: Rotation | None = None


class Heads(NamedTuple):
    """Queries, keys and values by head: h query heads share g key and value heads.

    sink_h: the score of each head's sink (SINK); None: there is none.
    """

    query_bthk: Array
    key_bsgk: Array
    value_bsge: Array
    sink_h: Array | None = None


class Drop(NamedTuple):
    """Dropout of the attention weights. keep_bhts: boolean, True = keep; None drops nothing."""

    keep_bhts: Mask = None
    rate: float = 0.0


class Memory(NamedTuple):
    """The vectors that a decoder attends to, from the encoder, and a mask that hides padding."""

    vectors_bsd: Array
    mask_bhts: Mask = None


class Text(NamedTuple):
    """One side of a model's input.

    ids: `b t`, or soft one-hot rows `b t v`. mask_bt: boolean, True = real token; None: every id
    but the padding id. segment_bt: the segment of every token; None: 0.
    """

    ids: Array
    mask_bt: Mask = None
    segment_bt: Array | None = None

    @classmethod
    def of(cls, text: Text | Array) -> Text:
        """Returns a text as it is, and ids as a text without mask and segments."""
        return text if isinstance(text, Text) else cls(text)
