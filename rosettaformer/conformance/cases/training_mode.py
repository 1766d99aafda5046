"""Cases of the training mode: every dropout site is given its keep mask, so that nothing is random."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, sites

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng
from .transformer import ONE_LAYER, tokens

RATES: dict[str, Any] = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "hidden_dropout_rate": 0.4}
CATCHES = "DRP3 DRP4"


def cases(build: Builder) -> Iterator[Case]:
    """Yields all sites; only some of them; the attention weights; the hidden layer; every dialect that drops something."""
    yield from _attention_cases(build)
    yield from _layer_cases(build)
    yield from _model_cases(build)


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
    hidden = build.config("sapiens", hidden_dropout_rate=0.4)
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
    for dialect in ("paper_base", "semillero", "guide", "keras_lab", "sapiens"):
        yield _model(build, f"keep_{dialect}", build.config(dialect, **ONE_LAYER), ragged(B, S), ragged(B, T))
    yield _model(build, "keep_all_sites", build.config(model_width=12, **RATES), left_padding(B, S), left_padding(B, T))
    normed = _model(build, "keep_embedding_norm", build.config(embedding_norm=True, **RATES, **ONE_LAYER), ragged(B, S), ragged(B, T))
    yield dataclasses.replace(normed, catches=(*normed.catches, "NRM14"))
    some = ("encoder.embedding_dropout", "encoder.layers.0.self_attention.weights_dropout", "decoder.layers.0.cross_attention_dropout")
    yield _model(build, "keep_some_sites", build.config(**RATES, **ONE_LAYER), ragged(B, S), ragged(B, T), some)


def _model(
    build: Builder, name: str, config: TransformerConfig, source_mask: np.ndarray, target_mask: np.ndarray, only: tuple[str, ...] = ()
) -> Case:
    masks = {site: mask for site, mask in _draw(config, name).items() if site in only or not only}
    catches = CATCHES + " DRP6" * name.endswith("_sites")
    return build.make("transformer", name, config, catches, **tokens(config, source_mask, target_mask), **_named(masks))


def _draw(config: TransformerConfig, name: str, source_length: int = S) -> dict[str, np.ndarray]:
    """Returns keep masks of all sites, by canonical name."""
    return parameters.flatten(sites.draw(config, B, source_length, T, rng(f"keep {name}")))


def _named(masks: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {f"keep.{name}": mask for name, mask in masks.items()}
