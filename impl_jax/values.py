"""What attention, models and their parts are given, as named values."""

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
    """What an attention multiplies; g divides h, and each key head serves `h/g` query heads."""

    query_bthk: jax.Array
    key_bsgk: jax.Array
    value_bsge: jax.Array


class Drop(NamedTuple):
    """Dropout of attention weights: which stay, and the rate by which these are scaled."""

    keep_bhts: Mask = None
    rate: float = 0.0


class Text(NamedTuple):
    """One side of a model's input: ids `b t`, or soft one-hot rows `b t v`.

    mask: True = real token, by default every id but the padding id. segment: of every token of a
    source, by default 0.
    """

    ids: jax.Array
    mask: Mask = None
    segment: jax.Array | None = None

    @classmethod
    def of(cls, text: Any) -> Any:
        """Ids alone become a Text of them; a Text or None is returned as it is."""
        return text if text is None or isinstance(text, Text) else cls(text)

    def real(self, padding_id: int | None) -> jax.Array:
        """Which tokens are real, `b t`."""
        return mask.token_mask(self.ids, padding_id) if self.mask is None else self.mask

    def split(self, lengths: Sequence[int]) -> "Iterator[Text]":
        """A target in parts of these lengths. Raises ValueError unless they are at least 1 and add
        up to its own, and on a mask that does not fit.
        """
        checks.check_splits(lengths, self.ids.shape)
        mask.check("target mask", self.mask, self.ids.shape[:2])
        for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
            part = slice(end - length, end)
            yield Text(self.ids[:, part], None if self.mask is None else self.mask[:, part])


class Own(TypedDict, total=False):
    """What every module takes by name and passes on to its parts.

    dtype: of the computation, by default that of x and the parameters. param_dtype: of the
    parameters, by default float32. rngs: the streams that initial values are drawn from.
    """

    dtype: Dtype | None
    param_dtype: Dtype
    rngs: nnx.Rngs


def given(**values: Any) -> dict[str, Any]:
    """The arguments that are not None; a layer of another class need not take the others."""
    return {name: value for name, value in values.items() if value is not None}
