"""What attention and models are given, as named values."""

from typing import Any, NamedTuple

import jax

__all__ = ["Drop", "Heads", "Text"]


class Heads(NamedTuple):
    """What an attention multiplies; g divides h, and each key head serves `h/g` query heads."""

    query_bthk: jax.Array
    key_bsgk: jax.Array
    value_bsge: jax.Array


class Drop(NamedTuple):
    """Dropout of attention weights: which stay, and the rate by which these are scaled."""

    keep_bhts: jax.Array | None = None
    rate: float = 0.0


class Text(NamedTuple):
    """One side of a model's input: ids `b t`, or soft one-hot rows `b t v`.

    mask: True = real token, by default every id but the padding id. segment: of every token of a
    source, by default 0.
    """

    ids: jax.Array
    mask: jax.Array | None = None
    segment: jax.Array | None = None

    @classmethod
    def of(cls, text: "Text | jax.Array | None") -> Any:
        """Ids alone become a Text of them; a Text or None is returned as it is."""
        return text if text is None or isinstance(text, Text) else cls(text)
