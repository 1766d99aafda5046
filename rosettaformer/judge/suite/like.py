"""Cases of a whole model by its logits: a Hugging Face checkpoint, prompts, and the port's outputs.

A short prompt hides most bugs: positions beyond a window or original length, padding, batches, and
cached steps. Each has its cases here. Only the mask shows padding: the ids under it are random, and
the padding id also occurs in the text. Outputs at padding are not compared.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh

from ...files.checkpoints import view
from ..case import DTYPES, MASKS, REAL, Case
from ..expectation.components import VJP
from ..stored import Stored
from .build import ragged, rng
from .checkpoint import ids_of, length_of
from .fitting import fits, fitting
from .gradients import gradient
from .meshes import on_meshes

B, UNEVEN, SHORT, PADDED = 4, 5, 7, 19
MEDIUM, LONG = 100, 600  # longer than small windows and original lengths; longer than 500
FAR = 1200  # enough tokens that half-precision frequencies matter
SINGLE, HALF = ("float64", "float32"), ("bfloat16", "float16")
CORE = ("short", "medium", "long", "far", "left_padding", "steps")  # diagnosis runs these in every dtype
STATES = ("short", "left_padding", "long")


def like_cases(
    folder: Path, meshes: Sequence[Mesh] = (), own: Path | None = None, dtypes: Sequence[str] = (), memory: float | None = None
) -> list[Case]:  # fmt: skip
    """Returns the cases of a model that is stored once per dtype, on meshes also of its loss.

    own: the checkpoint to make the cases from; by default the first of the folders. dtypes: by
    default those of the existing folders. memory: see `fitting`.

    Raises ValueError that lists everything wrong with the checkpoint, or if a mesh does not divide
    the model.
    """
    dtypes = tuple(dtype for dtype in DTYPES if (dtype in dtypes if dtypes else (folder / dtype).exists()))
    checkpoint = view(own or folder / dtypes[0], "hugging-face")
    config, stored = checkpoint.config, Stored.of(checkpoint)
    common: dict[str, Any] = {"parameters": stored, "folder": str(folder), "compared": REAL}
    said = checkpoint.foreign["config.json"]
    if config.cross_attention and meshes:
        raise ValueError("meshes need a model with an encoder or a decoder; got one with both")
    made = [dataclasses.replace(case, **common) for case in _of(config)]
    found = [with_special_ids(case, said) for case in made]
    apart = [_without_padding_id(case, said.get("pad_token_id")) for case in found]
    devices = max((mesh.devices for mesh in meshes), default=1)
    found = fitting((_in(dtypes, case) for case in found), memory, devices=devices)
    padded = "right_padding" if config.classes else "left_padding"
    asked = (_in(dtypes, case) for case in apart if case.name in ("short", padded) and case.component not in ("states", "routed_experts"))
    found += [_gradient(case, memory, devices) for case in asked]
    if meshes and config.decoder_layers:
        training = (_in(dtypes, dataclasses.replace(case, **common | {"compared": ""})) for case in _of_training(config))
        found += fitting(training, memory, required=False, devices=devices)
    found = [_in(dtypes, case).at("float64") for case in found]
    return on_meshes(found, meshes) if meshes else found


def deep_case(folder: Path, dtypes: Sequence[str]) -> Case:
    """Returns the short prompt for a model with more than ten layers, which text order (0, 1, 10, ...) exchanges."""
    checkpoint = view(folder / dtypes[0], "hugging-face")
    config = checkpoint.config
    case = next(case for case in _of(config) if case.name == "short" and case.component != "routed_experts")
    own: dict[str, Any] = {"parameters": Stored.of(checkpoint), "folder": str(folder), "compared": REAL}
    case = with_special_ids(dataclasses.replace(case, name="deep", core=False, **own), checkpoint.foreign["config.json"])
    return _in(dtypes, case).at("float64")


def _of(config: TransformerConfig) -> Iterator[Case]:
    of = _of_both if config.cross_attention else _of_encoder if config.encoder_layers else of_decoder
    return of(config)


def of_decoder(config: TransformerConfig) -> Iterator[Case]:
    routed = ("routed_experts",) if config.experts else ()
    for component in (*routed, "transformer", "states"):
        for name, inputs in prompts_of(config, "target", "target_mask_bt"):
            if component == "transformer" or name in STATES:
                yield case_of(name, component, config, inputs if component in routed else {"source": None} | inputs)
    if config.experts:  # almost all tokens choose the same experts
        token_bt = np.repeat(ids_of(config, "target", np.ones((1, 1), bool)), length_of(config, MEDIUM), axis=1)
        yield case_of("repeated", "transformer", config, {"source": None, "target": token_bt})
    for name, length, first in (("steps", PADDED, PADDED // 2), ("medium_steps", MEDIUM, MEDIUM - 9), ("long_steps", LONG + 6, LONG)):
        length = length_of(config, length)
        first = min(first, length - 1)
        if name == "long_steps":  # across a power of two, where a cache may grow
            first = max(1, 2 ** (length.bit_length() - 1) - 2)
        if name == "medium_steps":  # single tokens across the original length
            first = min([first, *(original - 2 for original in _original_lengths(config))])
        masks = {"steps": ragged(B, length), "medium_steps": columns(length), "long_steps": np.ones((1, length), bool)}
        mask = masks[name][:, ::-1]  # drops the shorter text's keys if the window is filled too early
        single = min(4, length - first)
        splits = (first, *[1] * single, *([length - first - single] if length - first > single else []))
        inputs = {"target": ids_of(config, "target", mask), "memory_bsd": None, "target_mask_bt": mask, "splits": splits}
        yield case_of(name, "decode_in_steps", config, inputs)


def _of_both(config: TransformerConfig) -> Iterator[Case]:
    """Yields pairs of a source and a target; the source is longer, and its rows have other padding."""
    sources = dict(prompts_of(config, "source", MASKS["source"], more=4))
    for component in ("transformer", "states"):
        for name, inputs in prompts_of(config, "target", MASKS["target"]):
            if component == "transformer" or name in STATES:
                source = {key: array[::-1] for key, array in sources[name].items()}
                yield case_of(name, component, config, source | inputs)
    for name, length, first in (("steps", PADDED, PADDED // 2), ("long_steps", LONG, LONG - 6)):
        length = length_of(config, length)
        first = min(first, length - 1)
        splits = (first, *[1] * min(4, length - first))
        mask = ragged(B if name == "steps" else 1, length)
        pair = {"source": ids_of(config, "source", mask[::-1]), "source_mask_bs": mask[::-1]}
        pair |= {"target": ids_of(config, "target", mask), "target_mask_bt": mask}
        case = case_of(name, "transformer", config, pair)
        yield dataclasses.replace(case, splits=(*splits, length - sum(splits)) if sum(splits) < length else splits)


def _of_encoder(config: TransformerConfig) -> Iterator[Case]:
    heads = {"masked_language_logits": config.masked_language_head, "classify": config.classes}
    for component in (*(name for name, present in heads.items() if present), "states"):
        for name, inputs in prompts_of(config, "source", "source_mask_bs"):
            mask = inputs.get("source_mask_bs")
            at_padding = component == "classify" and mask is not None and not mask[:, 0].all()  # the pooled token must be real
            if not at_padding and (component != "states" or name in STATES):
                yield case_of(name, component, config, inputs)
        if config.segments > 1:
            mask = ragged(B, length_of(config, PADDED))
            inputs = {"source": ids_of(config, "source", mask), "source_mask_bs": mask, "segment_bs": _segments(config, mask)}
            yield case_of("two_segments", component, config, inputs)


def _segments(config: TransformerConfig, mask_bs: np.ndarray) -> np.ndarray:
    """Returns segments: two texts in both orders, random ones, and only the last one."""
    length = mask_bs.shape[1]
    second_s = np.arange(length) >= length // 3
    random_bs = rng("like segments").integers(0, config.segments, mask_bs.shape)
    rows = np.stack([1 * second_s, 1 - second_s, random_bs[2], np.full(length, config.segments - 1)])
    return np.where(mask_bs, rows, random_bs)


def case_of(name: str, component: str, config: TransformerConfig, inputs: dict[str, Any]) -> Case:
    states = component == "states"
    outputs = ("encoder.hidden_lbtd", "decoder.hidden_lbtd") if states else ()
    dtypes = SINGLE if states or name in ("long_steps", "long_left_padding") else HALF if name == "far" else DTYPES
    return Case(name, component, config, inputs, dtypes=dtypes, outputs=outputs, core=name in CORE)


def prompts_of(config: TransformerConfig, side: str, mask_name: str, more: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields prompts by name: short, one token, rows and batches, both paddings, long.

    more: tokens by which they are longer.
    """
    long, padded = length_of(config, LONG + more), length_of(config, PADDED + more)
    full = {"short": (1, SHORT), "one_token": (1, 1), "batch": (B, SHORT + 2)}
    for original in (lengths := _original_lengths(config)):
        full |= {"original_length": (1, original), "beyond_original_length": (1, original + 1)}
    full |= {"medium": (1, MEDIUM), "long": (1, long), "far": (1, FAR)}
    for name, (rows, length) in full.items():
        yield name, {side: ids_of(config, side, np.ones((rows, length_of(config, length + more)), bool))}
    masks = {
        "right_padding": ragged(B, padded),
        "left_padding": ragged(B, padded)[:, ::-1],
        "left_padding_alone": np.arange(padded)[None] >= padded // 3,
        "right_padding_columns": columns(padded),
        "left_padding_columns": columns(padded)[:, ::-1],
        "both_padding": _inside(padded),
    }
    for original in lengths:
        masks["original_length_left_padding"] = np.arange(original + PADDED)[None] >= np.array([[PADDED], [PADDED + 2]])
    masks["long_left_padding"] = np.arange(long)[None] >= np.array([[long // 20], [long // 3]])
    for name, mask in masks.items():
        yield name, {side: ids_of(config, side, mask), mask_name: mask}


def _original_lengths(config: TransformerConfig) -> list[int]:
    """Returns the lengths after which RoPE frequencies change, if shorter than a long text."""
    kinds = [config.layer_kind(layer) for layer in range(config.encoder_layers or config.decoder_layers)]
    lengths = {kind.scaling.original_length or LONG for kind in kinds if kind.rotary and kind.scaling.by_length}
    return [length for length in lengths if length < LONG]


def columns(length: int) -> np.ndarray:
    """Returns a mask with right padding that pads the last columns of all rows. True = real."""
    return np.arange(length) < np.maximum(length - np.array([[4], [2], [7], [5]]), 1)


def _inside(length: int) -> np.ndarray:
    """Returns a mask with padding on both sides; the second row has a single real token. True = real."""
    first = length * np.array([[1], [3], [0], [6]]) // 7
    last = np.maximum(length * np.array([[6], [3], [5], [7]]) // 7, first + 1)
    return (np.arange(length) >= first) & (np.arange(length) < last)


def _of_training(config: TransformerConfig) -> Iterator[Case]:
    """Yields batches that few meshes divide, one with different numbers of labels."""
    masks = {"batch": np.ones((UNEVEN, SHORT + 2), bool), "right_padding": ragged(UNEVEN, SHORT + 2)}
    for name, mask in masks.items():
        inputs = {"target": ids_of(config, "target", mask), "target_mask_bt": mask}
        yield Case(name, "training", config, inputs, dtypes=SINGLE, core=name == "right_padding")


def with_special_ids(case: Case, said: Mapping[str, Any]) -> Case:
    """Returns the case with padding, begin, end, first and last ids in text and padding.

    A family that numbers positions by the padding id has it only at padding. said: the entries of
    config.json.
    """
    from ...files.checkpoints.hugging_face.families import FAMILIES

    if case.outside:
        return case
    inputs = dict(case.inputs)
    for side in _sides(case):
        ids, last = inputs[side].copy(), getattr(case.config, f"{side}_vocabulary") - 1
        named = [one for one in map(said.get, ("pad_token_id", "bos_token_id", "eos_token_id")) if type(one) is int and 0 <= one <= last]
        special = [*dict.fromkeys([*named, 0, last])]
        for row in range(len(ids)):
            places = np.arange(2 + row % 2, ids.shape[1], 3)[: 2 * len(special)]
            ids[row, places] = np.resize(special, len(places))
        start = said.get("decoder_start_token_id")
        if side == "target" and case.config.cross_attention and type(start) is int and 0 <= start <= last:
            first = np.zeros(len(ids), int) if case.real_bt is None else case.real_bt.argmax(axis=1)
            ids[np.arange(len(ids)), first] = start
        inputs[side] = ids
    found = dataclasses.replace(case, inputs=inputs)
    family = FAMILIES.get(said.get("model_type", ""))
    return _without_padding_id(found, said.get("pad_token_id")) if family and family.padded_by_id else found


def _sides(case: Case) -> list[str]:
    return [side for side in MASKS if case.inputs.get(side) is not None]


def _without_padding_id(case: Case, padding: Any) -> Case:
    """Returns the case with the padding id at all padding and nowhere else.

    Used for gradients: libraries compute none for the padding id's row.
    """
    inputs = dict(case.inputs)
    for side in _sides(case) if type(padding) is int else ():
        ids, real = inputs[side], inputs.get(MASKS[side])
        other = (padding + 1) % getattr(case.config, f"{side}_vocabulary")
        inputs[side] = np.where(True if real is None else real, np.where(ids == padding, other, ids), padding)
    return dataclasses.replace(case, inputs=inputs)


def _in(dtypes: Sequence[str], case: Case) -> Case:
    """Returns the case restricted to these dtypes."""
    return dataclasses.replace(case, dtypes=tuple(dtype for dtype in case.dtypes if dtype in dtypes))


def _gradient(case: Case, memory: float | None, devices: int) -> Case:
    """Returns the case of its parameter gradients, for a cotangent that is 0 at padding."""
    asked = dataclasses.replace(case, component=case.component + VJP, dtypes=tuple(dtype for dtype in case.dtypes if dtype in SINGLE))
    (asked,) = fitting([asked], memory, required=False, devices=devices)
    if not fits(asked):  # avoids computing the cotangent, which needs the output's shape
        return asked
    found = gradient(case)
    cotangent = case.part({"output": found.inputs["cotangent"]})["output"]
    names = tuple(f"parameters.{name}" for name in case.parameters)
    inputs = dict(found.inputs) | {"cotangent": cotangent}
    return dataclasses.replace(found, inputs=inputs, outputs=names, dtypes=asked.dtypes, too_large=asked.too_large, compared="")
