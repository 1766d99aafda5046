"""Cases of the masks."""

from collections.abc import Iterator

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Padding by id (not 0) and by none; causal masks of every relation of T to S; combinations with and without None."""
    some = build.config()
    ids = rng("mask ids").integers(0, 5, (B, S))
    yield build.make("token_mask", "padding_id", some, token=ids)
    yield build.make("token_mask", "no_padding_id", build.config(padding_id=None), token=ids)
    yield build.make("token_mask", "soft_rows", some, token="b s v")
    yield build.make("padding_mask", "right_padding", some, "ATT9", mask_bs=ragged(B, S))
    yield build.make("padding_mask", "left_padding", some, "ATT9", mask_bs=left_padding(B, S))
    for name, target, source in (("square", T, T), ("cached", T, S), ("step", 1, S), ("more_queries", S, T)):
        catches = {"square": "CAU1 CAU2", "step": "CAU3"}.get(name, "CAU1 CAU2 CAU3")
        yield build.make("causal_mask", name, some, catches, target_length=target, source_length=source)
    full = rng("mask full").random((B, 3, T, S)) < 0.5
    yield build.make("combine_masks", "both", some, mask_bhts=full, other_bhts=ragged(B, S)[:, None, None])
    yield build.make("combine_masks", "first", some, mask_bhts=full, other_bhts=None)
    yield build.make("combine_masks", "second", some, mask_bhts=None, other_bhts=full)
