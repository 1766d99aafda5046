"""Cases of models with a keep mask for every dropout site, and of models that skip padding."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from ..case import Case
from .build import B, Builder, S, T, inside_padding, left_padding, ragged, rng, shrinking_padding
from .transformer import ONE_LAYER, tokens

RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
# known bugs visible with a right-padded target; with padding before a real token; with a given mask
RIGHT = "PAD4 PAD6 PAD8 PAD9"
BEFORE = f"{RIGHT} PAD5"
MASKED = "PAD4 PAD7"
MANY = 3, 40, 33  # enough tokens that rounding their number up adds some


def cases(build: Builder) -> Iterator[Case]:
    """Yields models that skip padding, then all dropout sites, some sites, and every dialect."""
    for part in (_skip_padding_cases, _attention_cases, _layer_cases, _model_cases):
        yield from part(build)


def _skip_padding_cases(build: Builder) -> Iterator[Case]:
    """Yields padding on all sides, differing masks, soft rows, keep masks; one and many tokens.

    With left padding, an empty source has a target and an empty target has a source.
    """
    two, even = build.config(model_width=12), build.config(model_width=12, **ONE_LAYER)
    yield _skip(build, "ragged", two, RIGHT, ragged(B, S), ragged(B, T))
    yield _skip(build, "left_padding", two, f"{BEFORE} PE11 ATT9 ATT13", left_padding(B, S), left_padding(B, T)[::-1])
    yield _skip(build, "shrinking_padding", even, f"{BEFORE} PE27", shrinking_padding(B, S), shrinking_padding(B, T))
    yield _skip(build, "inside_padding", two, BEFORE, inside_padding(B, S), inside_padding(B, T))
    yield _skip(build, "all_padding", even, "PAD4", ragged(B, S), np.zeros((B, T), bool))
    yield _skip(build, "no_padding", even, "ATT3 NRM8", np.ones((B, S), bool), np.ones((B, T), bool))
    yield _skip(build, "one_token", even, "PAD4", np.arange(S) == np.array([[3]]), np.arange(T) == np.array([[2]]))
    long = [rng(f"skip padding long {length}").random((MANY[0], length)) < 0.7 for length in MANY[1:]]
    yield _skip(build, "long", even, BEFORE, *long)
    pre = build.config("paper_base", norm_placement="pre", heads=6, key_value_heads=2, **ONE_LAYER)
    yield _skip(build, "pre_norm_grouped_heads", pre, f"{RIGHT} MHA10", ragged(B, S)[::-1], ragged(B, T))
    yield from _masked_cases(build, even)
    dropped = build.config(model_width=12, **RATES)
    keep = _named(_draw(dropped, "skip padding"))
    yield _skip(build, "keep", dropped, "PAD4 DRP3 DRP4 DRP6", left_padding(B, S), inside_padding(B, T), **keep)


def _masked_cases(build: Builder, even: TransformerConfig) -> Iterator[Case]:
    """Yields cases where only masks show the padding; soft rows; segments."""
    masks: dict[str, Any] = {"source_mask_bs": inside_padding(B, S), "target_mask_bt": left_padding(B, T)}
    full = np.ones((B, S), bool), np.ones((B, T), bool)
    yield _skip(build, "explicit_masks", build.config(padding_id=None, **ONE_LAYER), MASKED, *full, **masks)
    other: dict[str, Any] = {"source_mask_bs": shrinking_padding(B, S), "target_mask_bt": shrinking_padding(B, T)}
    yield _skip(build, "masks_beside_padding", even, MASKED, ragged(B, S), ragged(B, T), **other)
    source, target = (
        rng(f"skip padding soft {side}").dirichlet(np.ones(vocabulary), (B, length))
        for side, vocabulary, length in (("source", even.source_vocabulary, S), ("target", even.target_vocabulary, T))
    )
    yield _skip(build, "soft_rows", even, MASKED, *full, source=source, target=target, **masks)
    segmented = build.config(segments=3, embedding_norm=True, **ONE_LAYER)
    segment_bs = rng("skip padding segments").integers(0, segmented.segments, (B, S)) if segmented.segments else None
    yield _skip(build, "segments", segmented, "PAD4 SEG1", ragged(B, S), ragged(B, T), segment_bs=segment_bs)


def _skip(
    build: Builder, name: str, config: TransformerConfig, catches: str, source_mask: np.ndarray, target_mask: np.ndarray, **inputs: Any
) -> Case:
    """Returns a whole-model case on random ids, with padding ids where the masks are False."""
    given = tokens(config, source_mask, target_mask, name=f"skip padding {name} ") | inputs
    return build.make("transformer", f"skip_padding_{name}", config, catches, **given, skip_padding=True)


CATCHES = "DRP3 DRP4"


def _attention_cases(build: Builder) -> Iterator[Case]:
    some = build.config()
    keep = rng("keep weights").random((B, some.heads, T, S)) >= 0.3
    given: dict[str, Any] = {"query_bthk": "b t h k", "key_bsgk": "b s g k", "value_bsge": "b s g e", "keep_bhts": keep}
    given["dropout_rate"] = 0.3
    masked: dict[str, Any] = {"mask_bhts": left_padding(B, S)[:, None, None]}
    for name, inputs in (("keep", {}), ("keep_masked_weights", masked | {"return_weights": True}), ("keep_causal", {"causal": True})):
        yield build.make("scaled_dot_product_attention", name, some, f"{CATCHES} DRP6", **given, **inputs)
    dropped = build.config(attention_dropout_rate=0.3)
    x: dict[str, Any] = {"query_btd": "b t d", "memory_bsd": "b s d"}
    yield build.make("multi_head_attention", "keep", dropped, f"{CATCHES} DRP6", **x, keep_bhts=keep, mask_bhts=ragged(B, S)[:, None, None])
    hidden = build.config("feed_forward_dropout", hidden_dropout_rate=0.4)
    keep_btf = rng("keep hidden").random((B, T, hidden.feed_forward_width)) >= 0.4
    yield build.make("feed_forward", "keep", hidden, CATCHES, x_btd="b t d", keep_btf=keep_btf)


def _layer_cases(build: Builder) -> Iterator[Case]:
    for placement in ("post", "pre"):
        config = build.config(norm_placement=placement, **RATES)
        for stack, x in (("encoder", {"x_btd": "b t d"}), ("decoder", {"x_btd": "b t d", "memory_bsd": "b s d"})):
            layer = {
                name.removeprefix(f"{stack}.layers.0."): mask
                for name, mask in _draw(config, f"{stack} layer", T if stack == "encoder" else S).items()
                if name.startswith(f"{stack}.layers.0.")
            }
            chosen = {"": layer}
            if placement == "post":
                chosen |= {
                    "_weights": {name: mask for name, mask in layer.items() if name.endswith("weights_dropout")},
                    "_hidden": {name: mask for name, mask in layer.items() if name.endswith("hidden_dropout")},
                    "_sublayers": {name: mask for name, mask in layer.items() if not name.endswith(("weights_dropout", "hidden_dropout"))},
                }
            for name, masks in chosen.items():
                inputs = x | _named(masks)
                yield build.make(f"{stack}_layer", f"keep_{placement}{name}", config, CATCHES, **inputs)


def _model_cases(build: Builder) -> Iterator[Case]:
    config = build.config(**RATES)
    for stack, inputs in (("encoder", {"x_bsd": "b s d"}), ("decoder", {"x_btd": "b t d", "memory_bsd": "b s d"})):
        prefix = f"{stack}."
        masks = {name.removeprefix(prefix): mask for name, mask in _draw(config, stack).items() if name.startswith(f"{prefix}layers.")}
        yield build.make(stack, "keep", config, CATCHES, **(inputs | _named(masks)))
    for dialect in ("paper_base", "nn_transformer", "separate_tables", "unscaled_embedding", "feed_forward_dropout"):
        yield _kept(build, f"keep_{dialect}", build.config(dialect, **ONE_LAYER), ragged(B, S), ragged(B, T))
    yield _kept(build, "keep_all_sites", build.config(model_width=12, **RATES), left_padding(B, S), left_padding(B, T))
    normed = _kept(build, "keep_embedding_norm", build.config(embedding_norm=True, **RATES, **ONE_LAYER), ragged(B, S), ragged(B, T))
    yield dataclasses.replace(normed, catches=(*normed.catches, "NRM14"))
    some = ("encoder.embedding_dropout", "encoder.layers.0.self_attention.weights_dropout", "decoder.layers.0.cross_attention_dropout")
    yield _kept(build, "keep_some_sites", build.config(**RATES, **ONE_LAYER), ragged(B, S), ragged(B, T), some)


def _kept(
    build: Builder, name: str, config: TransformerConfig, source_mask: np.ndarray, target_mask: np.ndarray, only: tuple[str, ...] = ()
) -> Case:
    masks = {site: mask for site, mask in _draw(config, name).items() if site in only or not only}
    catches = CATCHES + " DRP6" * name.endswith("_sites")
    return build.make("transformer", name, config, catches, **tokens(config, source_mask, target_mask), **_named(masks))


def _draw(config: TransformerConfig, name: str, source_length: int = S) -> dict[str, np.ndarray]:
    """Returns the keep masks of all dropout sites, by canonical name."""
    return parameters.flatten(sites.draw(config, B, source_length, T, rng(f"keep {name}")))


def _named(masks: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {f"keep.{name}": mask for name, mask in masks.items()}
