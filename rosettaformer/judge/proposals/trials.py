"""Small cases on which open choices are tried: one for each part of a model in which a choice shows, with the other parts silent."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.positional_encoding import positional_encoding

from ..case import Case
from ..suite.build import B, Builder, S, T, ragged
from ..suite.transformer import ids
from .component_inputs import is_model
from .draft import Draft, Selection

QUIET, FIRST = 0.01, 3  # the size to which a row is reduced, and the first id that is neither padding nor special


def example(component: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns inputs of the component, without masks."""
    build = Builder(sizes)
    config = build.config("nn_transformer", **sizes)
    found = dict(build.make(component, "example", config, **next(_inputs(component, config, ""))[1]).inputs)
    segmented = is_model(component) and "target" not in found
    return found | ({"segment_bs": np.zeros((B, S), np.int64)} if segmented else {})


def trial_cases(draft: Draft, selection: Selection, group: str) -> list[Case]:
    """Returns small cases in which everything that does not show the group is silent: the outputs of the other sub-layers are zero."""
    fixed = draft.free() | draft.config(selection)
    build = Builder(fixed, draft.shared)
    config = build.config("nn_transformer", **fixed)
    given = list(_inputs(draft.component, config, group))
    if "if" in draft.call.given:  # its causal mask is built in
        given = [(name, {**inputs, "causal": True}) for name, inputs in given]
    if not draft.call.masks and not is_model(draft.component):  # a module without masks
        given = given[:1]
    cases = [build.make(draft.component, f"trial {group} {name}", config, **inputs) for name, inputs in given]
    for case in cases:
        for name, value in case.parameters.items():
            if _silent(name, group, draft.component):
                value[...] = 0
        if group in ("norms", "feed_forward"):
            _vary(case)
            if is_model(case.component):
                _quieten(case)
    return cases


def _vary(case: Case) -> None:
    """Gives rows a variance so small that what is added to it shows, down to 1e-12."""
    for name in {"x_btd", "x_bsd"} & case.inputs.keys():
        case.inputs[name][...] *= np.array([1, 1e-2, 1e-4])[:, None, None]


def _quieten(case: Case) -> None:
    """Gives the first layer rows of small variance: each token is nearly the opposite of its position, or all tables are small.

    Not smaller than positions in float32 allow.
    """
    config = case.config
    for name, table in case.parameters.items():
        if name.endswith("embedding.table"):
            table[...] *= QUIET
    for side in ("source", "target"):
        if case.inputs.get(side) is None:
            continue
        place = np.arange(case.inputs[side].shape[1])
        case.inputs[side][...] = FIRST + place
        shared = config.share_embeddings and side == "target"
        rows_of = case.parameters.get(f"{side}_embedding.table")
        if config.positions == "sinusoidal" and rows_of is not None and not shared:
            rows = positional_encoding(np.arange(S)[None], config.model_width, np.dtype("float64"))[0]
            rows_of[FIRST : FIRST + S] -= rows / (math.sqrt(config.model_width) if config.scale_embedding else 1)


def _silent(name: str, group: str, component: str) -> bool:
    """Whether a parameter is zero in the cases of a group."""
    masks = group in ("source", "target")
    if masks and ".query." in f".{name}":  # every visible key has the same weight, whatever is wrong with the logits
        return True
    if ".feed_forward.output." in f".{name}":
        return masks or group in ("norms", "attention")
    if masks and (component in ("decoder_layer", "decoder") or name.startswith("decoder.")):
        return {"source": "self_attention.output.", "target": "cross_attention.output."}[group] in name
    return "_attention.output." in name and group in ("norms", "feed_forward")


def _inputs(component: str, config: TransformerConfig, group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the inputs of the cases: without masks and, if masks are tried, with them."""
    of_source, of_target = group in ("source", "all"), group in ("target", "all")
    x, memory = {"x_btd": "b t d"}, {"memory_bsd": "b s d"} if config.cross_attention else {}
    of_keys, of_queries = ragged(B, S)[:, None, None], ragged(B, T)[:, None, None]
    both = {"self_mask_bhts": of_queries} if of_target else {}
    both |= {"cross_mask_bhts": of_keys} if memory and of_source else {}
    plain: dict[str, dict[str, Any]] = {
        "multi_head_attention": {"query_btd": "b t d", "memory_bsd": "b s d"},
        "cross_attention_sublayer": x | {"memory_bsd": "b s d"},
        "encoder": {"x_bsd": "b s d"},
        "decoder_layer": x | memory,
        "decoder": x | memory,
        "embedding": {"token": np.arange(B * T).reshape(B, T) % config.target_vocabulary},
        "positional_encoding": {"position_bt": np.tile(np.arange(T), (B, 1))},
    }
    masks: dict[str, dict[str, Any]] = {
        **{name: {"mask_bhts": of_keys} for name in ("multi_head_attention", "cross_attention_sublayer", "encoder")},
        **{name: {"mask_bhts": of_queries} for name in ("self_attention", "self_attention_sublayer", "encoder_layer")},
        "decoder_layer": both,
        "decoder": both,
    }
    if is_model(component):
        yield from _tokens(component, config, of_source, of_target)
        return
    yield "plain", plain.get(component, x)
    if (of_source or of_target) and component in masks:
        yield "masked", plain.get(component, x) | masks[component]


def _tokens(component: str, config: TransformerConfig, of_source: bool, of_target: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the ids that a whole model is given: without padding and, if masks are tried, with it."""
    whole = np.ones((B, S), bool), np.ones((B, T), bool)
    padded = ragged(B, S) if of_source else whole[0], ragged(B, T) if of_target else whole[1]
    for name, (source, target) in (("plain", whole), ("masked", padded))[: 1 + (of_source or of_target)]:
        found: dict[str, Any] = {"source": None} if component != "token_decoder" else {}
        if config.encoder_layers and component != "token_decoder":
            found["source"] = ids("source", config.source_vocabulary, config.padding_id, source)
        if component in ("transformer", "token_decoder"):
            found["target"] = ids("target", config.target_vocabulary, config.padding_id, target)
        elif config.segments:
            found["segment_bs"] = np.arange(B * S).reshape(B, S) % config.segments
        if component == "token_decoder" and config.encoder_layers:
            found |= {"memory_bsd": "b s d", "source_mask_bs": source if name == "masked" and of_source else None}
        yield name, found
