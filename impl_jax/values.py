"""Small immutable values that functions and modules pass to each other."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypedDict

import jax
from flax import nnx
from flax.typing import Dtype

from reference_numpy import checks

from . import mask

__all__ = ["Drop", "Heads", "Mask", "Own", "Text", "given"]

Mask = jax.Array | None


class Heads(NamedTuple):
    """Queries, keys and values by head: h query heads share g key and value heads.

    sink_h: the score of each head's sink (SINK); None: there is none.
    """

    query_bthk: jax.Array
    key_bsgk: jax.Array
    value_bsge: jax.Array
    sink_h: jax.Array | None = None


class Drop(NamedTuple):
    """Dropout of the attention weights: a keep mask, True = keep, and the rate for scaling."""

    keep_bhts: Mask = None
    rate: float = 0.0


class Text(NamedTuple):
    """One side of a model's input: ids `b t`, or soft one-hot rows `b t v`.

    mask: True = real token; default, every id but the padding id. segment: of every token of a
    source; default 0.
    """

    ids: jax.Array
    mask: Mask = None
    segment: jax.Array | None = None

    @classmethod
    def of(cls, text: Any) -> Any:
        """Wraps ids; returns a text or None unchanged."""
        return text if text is None or isinstance(text, Text) else cls(text)

    def real(self, padding_id: int | None) -> jax.Array:
        """Returns which tokens are real, `b t`."""
        return mask.token_mask(self.ids, padding_id) if self.mask is None else self.mask

    def split(self, lengths: Sequence[int]) -> "Iterator[Text]":
        """Yields a target in parts of these lengths. Raises ValueError unless they are at least 1
        and add up to its length, and if the mask does not match.
        """
        checks.check_splits(lengths, self.ids.shape)
        mask.check("target mask", self.mask, self.ids.shape[:2])
        for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
            part = slice(end - length, end)
            yield Text(self.ids[:, part], None if self.mask is None else self.mask[:, part])


class Own(TypedDict, total=False):
    """Keyword arguments that every module takes and passes on to its parts.

    dtype: of the computation, default that of x and the parameters. param_dtype: of the parameters,
    default float32. rngs: streams for initial values.
    """

    dtype: Dtype | None
    param_dtype: Dtype
    rngs: nnx.Rngs


def given(**values: Any) -> dict[str, Any]:
    """Returns the arguments that are not None; layers of other classes need not take the others."""
    return {name: value for name, value in values.items() if value is not None}
