"""Cases of the masks."""

from collections.abc import Iterator

from ..case import Case
from .build import B, S, T, config, left_padding, make, ragged, rng

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Padding by id (not 0) and by none; causal masks of every relation of T to S; combinations with and without None."""
    some = config()
    ids = rng("mask ids").integers(0, 5, (B, S))
    yield make("token_mask", "padding_id", some, token=ids)
    yield make("token_mask", "no_padding_id", config(padding_id=None), token=ids)
    yield make("token_mask", "soft_rows", some, token=(B, S, 29))
    yield make("padding_mask", "right_padding", some, mask_bs=ragged(B, S))
    yield make("padding_mask", "left_padding", some, mask_bs=left_padding(B, S))
    for name, target, source in (("square", T, T), ("cached", T, S), ("step", 1, S), ("more_queries", S, T)):
        catches = {"square": "CAU1 CAU2", "step": "CAU3"}.get(name, "CAU1 CAU2 CAU3")
        yield make("causal_mask", name, some, catches, target_length=target, source_length=source)
    full = rng("mask full").random((B, 3, T, S)) < 0.5
    yield make("combine_masks", "both", some, mask_bhts=full, other_bhts=ragged(B, S)[:, None, None])
    yield make("combine_masks", "first", some, mask_bhts=full, other_bhts=None)
    yield make("combine_masks", "second", some, mask_bhts=None, other_bhts=full)
