"""Cases of the softmax."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Ragged and empty rows; logits so large that only a subtracted maximum survives; one entry, and so many
    that a half-precision dtype cannot count them."""
    some, shape = build.config(), (B, 3, T, S)
    generator = rng("softmax values")
    large = generator.choice([-6e4, -5.9e4, 0.0, 5.9e4, 6e4], shape) + generator.standard_normal(shape)
    yield build.make("softmax", "plain", some, "ATT4", logits=shape, mask=None)
    yield build.make("softmax", "ragged", some, "ATT4 ATT5 ATT6 ATT8", logits=shape, mask=ragged(B, S)[:, None, None])
    yield build.make("softmax", "empty_rows", some, "ATT13", logits=shape, mask=left_padding(B, S)[:, None, None])
    yield build.make("softmax", "large", some, logits=large, mask=None)
    yield build.make("softmax", "large_masked", some, "ATT10 ATT12", logits=-np.abs(large), mask=ragged(B, S)[:, None, None])
    yield build.make("softmax", "all_equal", some, logits=np.full(shape, 3.25), mask=None)
    yield build.make("softmax", "one_entry", some, logits=(B, 3, T, 1), mask=None)
    yield build.make("softmax", "long", some, "ATT19", logits=generator.standard_normal((1, 1, 3, 2000)) / 10, mask=None)
    yield build.make("softmax", "one_axis", some, logits=(S,), mask=None)
