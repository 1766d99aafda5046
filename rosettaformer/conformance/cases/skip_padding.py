"""Cases of the whole model with `skip_padding`: every pattern of padding, shown by the ids or by masks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from ..case import Case
from .build import B, Builder, S, T, inside_padding, left_padding, ragged, rng, shrinking_padding
from .transformer import ONE_LAYER, tokens

RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
# what shows if the target is padded on the right; if padding stands before a real token; if a mask is given
RIGHT = "PAD4 PAD6 PAD8 PAD9"
BEFORE = f"{RIGHT} PAD5"
MASKED = "PAD4 PAD7"
LONG = 3, 40, 33  # enough tokens that a framework that rounds their number up has some to spare


def cases(build: Builder) -> Iterator[Case]:
    """Yields padding on the right, on the left, inside and throughout; none; masks beside the ids; soft rows; keep masks; one token, and
    many.

    With left padding a source without a token has a target, and a target without one has a source.
    """
    two, even = build.config(model_width=12), build.config(model_width=12, **ONE_LAYER)
    yield _model(build, "ragged", two, RIGHT, ragged(B, S), ragged(B, T))
    yield _model(build, "left_padding", two, f"{BEFORE} PE11 ATT9 ATT13", left_padding(B, S), left_padding(B, T)[::-1])
    yield _model(build, "shrinking_padding", even, f"{BEFORE} PE27", shrinking_padding(B, S), shrinking_padding(B, T))
    yield _model(build, "inside_padding", two, BEFORE, inside_padding(B, S), inside_padding(B, T))
    yield _model(build, "all_padding", even, "PAD4", ragged(B, S), np.zeros((B, T), bool))
    yield _model(build, "no_padding", even, "ATT3 NRM8", np.ones((B, S), bool), np.ones((B, T), bool))
    yield _model(build, "one_token", even, "PAD4", np.arange(S) == np.array([[3]]), np.arange(T) == np.array([[2]]))
    long = [rng(f"skip padding long {length}").random((LONG[0], length)) < 0.7 for length in LONG[1:]]
    yield _model(build, "long", even, BEFORE, *long)
    pre = build.config("paper_base", norm_placement="pre", heads=6, key_value_heads=2, **ONE_LAYER)
    yield _model(build, "pre_norm_grouped_heads", pre, f"{RIGHT} MHA10", ragged(B, S)[::-1], ragged(B, T))
    yield from _masked_cases(build, even)
    dropped = build.config(model_width=12, **RATES)
    keep = parameters.flatten(sites.draw(dropped, B, S, T, rng("keep skip padding")))
    named = {f"keep.{name}": mask for name, mask in keep.items()}
    yield _model(build, "keep", dropped, "PAD4 DRP3 DRP4 DRP6", left_padding(B, S), inside_padding(B, T), **named)


def _masked_cases(build: Builder, even: TransformerConfig) -> Iterator[Case]:
    """Yields cases whose masks show the padding: there is no padding id; it stands elsewhere; tokens are soft rows; there are segments."""
    masks: dict[str, Any] = {"source_mask_bs": inside_padding(B, S), "target_mask_bt": left_padding(B, T)}
    full = np.ones((B, S), bool), np.ones((B, T), bool)
    yield _model(build, "explicit_masks", build.config(padding_id=None, **ONE_LAYER), MASKED, *full, **masks)
    other: dict[str, Any] = {"source_mask_bs": shrinking_padding(B, S), "target_mask_bt": shrinking_padding(B, T)}
    yield _model(build, "masks_beside_padding", even, MASKED, ragged(B, S), ragged(B, T), **other)
    source, target = (
        rng(f"skip padding soft {side}").dirichlet(np.ones(vocabulary), (B, length))
        for side, vocabulary, length in (("source", even.source_vocabulary, S), ("target", even.target_vocabulary, T))
    )
    yield _model(build, "soft_rows", even, MASKED, *full, source=source, target=target, **masks)
    segmented = build.config(segments=3, embedding_norm=True, **ONE_LAYER)
    segment_bs = rng("skip padding segments").integers(0, segmented.segments, (B, S)) if segmented.segments else None
    yield _model(build, "segments", segmented, "PAD4 SEG1", ragged(B, S), ragged(B, T), segment_bs=segment_bs)


def _model(
    build: Builder, name: str, config: TransformerConfig, catches: str, source_mask: np.ndarray, target_mask: np.ndarray, **inputs: Any
) -> Case:
    """Returns a case of the whole model with random ids; the masks say where the padding id stands."""
    given = tokens(config, source_mask, target_mask, name=f"skip padding {name} ") | inputs
    return build.make("transformer", f"skip_padding_{name}", config, catches, **given, skip_padding=True)
