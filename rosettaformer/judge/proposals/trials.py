"""Small cases for trying choices: one part of a model is active, the others are silent."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.positional_encoding import positional_encoding

from ..case import Case
from ..suite.build import B, Builder, S, T, ragged
from ..suite.transformer import ids
from .components import inputs, is_model, masks
from .draft import Draft, Selection

QUIET, FIRST = 0.01, 3  # the scale of quiet rows, and the first id that is neither padding nor special


def example(component: str, sizes: dict[str, Any], decoder_only: bool) -> dict[str, Any]:
    """Returns inputs of the component, without masks."""
    sizes = sizes | ({"encoder_layers": 0} if decoder_only else {})
    build = Builder(sizes)
    config = build.config("nn_transformer", **sizes)
    return dict(build.make(component, "example", config, **next(_inputs(component, config, ""))[1]).inputs)


def trial_cases(draft: Draft, selection: Selection, group: str) -> list[Case]:
    """Returns small cases in which only the group's part is active."""
    fixed = draft.config(selection)
    build = Builder(fixed, draft.shared)
    config = build.config("nn_transformer", **fixed)
    given = list(_inputs(draft.component, config, group))
    if "if" in draft.call.given:  # its causal mask is built in
        given = [(name, {**values, "causal": True}) for name, values in given]
    if not draft.call.masks and not is_model(draft.component):  # a module without masks
        given = given[:1]
    cases = [build.make(draft.component, f"trial {group} {name}", config, **values) for name, values in given]
    for case in cases:
        for name, value in case.parameters.items():
            if _silent(name, group, draft.component):
                value[...] = 0
        if group in ("norms", "feed_forward"):
            _quieten(case)
    return cases


def _quieten(case: Case) -> None:
    """Gives the first layer rows whose variance is so small that epsilon matters, down to 1e-12.

    For whole models, float32 positions limit how small: tokens nearly cancel their positions, or
    all tables are small.
    """
    for name in {"x_btd", "x_bsd"} & case.inputs.keys():
        case.inputs[name][...] *= np.array([1, 1e-2, 1e-4])[:, None, None]
    if not is_model(case.component):
        return
    config = case.config
    for name, table in case.parameters.items():
        if name.endswith("embedding.table"):
            table[...] *= QUIET
    for side in ("source", "target"):
        if case.inputs.get(side) is None:
            continue
        case.inputs[side][...] = FIRST + np.arange(case.inputs[side].shape[1])
        rows_of = case.parameters.get(f"{side}_embedding.table")
        if config.positions == "sinusoidal" and rows_of is not None and not (config.share_embeddings and side == "target"):
            rows = positional_encoding(np.arange(S)[None], config.model_width, np.dtype("float64"))[0]
            rows_of[FIRST : FIRST + S] -= rows / (math.sqrt(config.model_width) if config.scale_embedding else 1)


def _silent(name: str, group: str, component: str) -> bool:
    """Whether a parameter is zero in a group's cases."""
    hiding = group in ("source", "target")
    if hiding and ".query." in f".{name}":  # visible keys have equal weights, whatever the logits are
        return True
    if ".feed_forward.output." in f".{name}":
        return hiding or group in ("norms", "attention")
    if hiding and (component in ("decoder_layer", "decoder") or name.startswith("decoder.")):
        return {"source": "self_attention.output.", "target": "cross_attention.output."}[group] in name
    return "_attention.output." in name and group in ("norms", "feed_forward")


def _inputs(component: str, config: TransformerConfig, group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the cases' inputs: without masks and, if masks are tried, with masks."""
    of_source, of_target = group in ("source", "all"), group in ("target", "all")
    if is_model(component):
        yield from _tokens(component, config, of_source, of_target)
        return
    alone = component.startswith("decoder") and not config.cross_attention
    plain: dict[str, Any] = {name: " ".join(name.rpartition("_")[2]) for name in inputs(component) if name != "memory_bsd" or not alone}
    if component == "embedding":
        plain = {"token": np.arange(B * T).reshape(B, T) % config.target_vocabulary}
    if component == "positional_encoding":
        plain = {"position_bt": np.tile(np.arange(T), (B, 1))}
    yield "plain", plain
    of_queries, of_keys = ragged(B, T)[:, None, None], ragged(B, S)[:, None, None]
    hiding = {"mask_bhts": of_keys if "bsd" in inputs(component)[-1] else of_queries}
    hiding |= ({"self_mask_bhts": of_queries} if of_target else {}) | ({"cross_mask_bhts": of_keys} if of_source and not alone else {})
    if (of_source or of_target) and masks(component):
        yield "masked", plain | {name: mask for name, mask in hiding.items() if name in masks(component)}


def _tokens(component: str, config: TransformerConfig, of_source: bool, of_target: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a whole model's ids: without padding and, if masks are tried, with padding."""
    whole = np.ones((B, S), bool), np.ones((B, T), bool)
    padded = ragged(B, S) if of_source else whole[0], ragged(B, T) if of_target else whole[1]
    for name, (source, target) in (("plain", whole), ("masked", padded))[: 1 + (of_source or of_target)]:
        found: dict[str, Any] = {"source": None} if component != "token_decoder" else {}
        if config.encoder_layers and component != "token_decoder":
            found["source"] = ids("source", config.source_vocabulary, config.padding_id, source)
        if component in ("transformer", "token_decoder"):
            found["target"] = ids("target", config.target_vocabulary, config.padding_id, target)
        if component == "token_decoder" and config.encoder_layers:
            found |= {"memory_bsd": "b s d", "source_mask_bs": source if name == "masked" and of_source else None}
        yield name, found
