"""Whole-model cases of files exported from a checkpoint, aimed at what exports break.

They use batch sizes other than 1, lengths other than the example's, one token, long texts, padding
on either side, an empty row, cached steps, and ids out of range; and all of it again at sizes that
a file fixes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ...files.checkpoints import Checkpoint
from ..case import MASKS, REAL, Case
from ..expectation.components import FILES
from ..stored import Stored
from .build import ragged
from .checkpoint import ids_of, length_of
from .like import CORE, LONG, MEDIUM, PADDED, SHORT, SINGLE, B, case_of, of_decoder, prompts_of, with_special_ids

ROWS = 5  # a batch size that no export example uses
OUTSIDE = ("minus_one", "vocabulary")  # ids outside every vocabulary
FIXED = "fixed_"  # prefix of cases at a file's fixed sizes
Inputs = dict[str, Any]


def artefact_cases(path: Path, checkpoint: Checkpoint) -> list[Case]:
    """Returns the cases for files exported from the checkpoint at that path."""
    config = checkpoint.config
    of = _of_both if config.cross_attention else _of_encoder if config.encoder_layers else _of_decoder
    common: dict[str, Any] = {"parameters": Stored.of(checkpoint), "folder": str(path), "compared": REAL}
    said = checkpoint.foreign.get("config.json", {}) if config.padding_id is None else None
    found = of(config) if said is None else (with_special_ids(case, said) for case in of(config))
    return [dataclasses.replace(case, **common) for case in found]


def fixed_cases(cases: Sequence[Case], sizes: Mapping[str, int]) -> list[Case]:
    """Returns the cases, also at the file's fixed rows, lengths and cache length."""
    found = []
    for case in cases:
        if sizes.keys() - {"room"} and not case.splits and (case.outside or case.name in _FIXED_MASKS):
            found.append(_sized(case, sizes))
        if case.name == "steps" and sizes.keys() & {"rows", "room"}:
            found.append(_in_room(case, sizes))
    return [*found, *cases]


def _full_rows(rows: int, length: int) -> np.ndarray:
    return np.ones((rows, length), bool)


def _ends_early(rows: int, length: int) -> np.ndarray:
    """Returns a mask whose last row lacks its final third; of several, the first is full."""
    lost = np.ceil(length / 3 * np.linspace(rows == 1, 1, rows))
    return np.arange(length) < np.maximum(length - lost, 1)[:, None]


def _columns(rows: int, length: int) -> np.ndarray:
    """Returns a mask whose last columns are padding in every row, even the first."""
    return np.arange(length) < np.maximum(length - length // 4 - np.arange(rows) % 3, 1)[:, None]


def _without_last_row(rows: int, length: int) -> np.ndarray:
    mask = _full_rows(rows, length)
    mask[-1] = rows == 1
    return mask


# case name -> its mask at other sizes
_FIXED_MASKS = {
    "batch": _full_rows,
    "right_padding": _ends_early,
    "left_padding": lambda rows, length: _ends_early(rows, length)[:, ::-1],
    "right_padding_columns": _columns,
    "left_padding_columns": lambda rows, length: _columns(rows, length)[:, ::-1],
    "empty_row": _without_last_row,
    "two_segments": _ends_early,
}


def _sized(case: Case, sizes: Mapping[str, int]) -> Case:
    """Returns the case at these sizes. An id out of range is in the middle of the last row."""
    inputs = dict(case.inputs)
    masked = any(inputs.get(name) is not None for name in MASKS.values())
    for side in ("source", "target"):
        if inputs.get(side) is not None:
            rows, length = sizes.get("rows", B), sizes.get(side, inputs[side].shape[1])
            mask = _full_rows(rows, length) if case.outside else _FIXED_MASKS[case.name](rows, length)
            ids = ids_of(case.config, side, mask) if case.outside else _resized(case, side, mask)
            inputs |= {side: ids} | ({MASKS[side]: mask} if masked else {})
    if inputs.get("segment_bs") is not None:
        inputs["segment_bs"] = (np.arange(inputs["source"].shape[1]) >= inputs["source"].shape[1] // 2) + np.zeros((rows, 1), int)
    found = dataclasses.replace(case, name=f"{FIXED}{case.name}", inputs=inputs, core=True)
    return _with_id(found, case.outside, outside_id(case)) if case.outside else found


def _resized(case: Case, side: str, mask: np.ndarray) -> np.ndarray:
    """Returns the ids in the mask's shape. A common padding id stays only at padding."""
    before, real = case.inputs[side], case.inputs.get(MASKS[side])
    ids, hidden = np.resize(before, mask.shape), np.unique(before[~real] if real is not None else before[:0])
    if len(hidden) != 1:
        return ids
    return np.where(mask, np.where(ids == hidden, (hidden + 1) % ids_in(case.config, side), ids), hidden)


def _in_room(case: Case, sizes: Mapping[str, int]) -> Case:
    """Returns the case in steps with full rows: the first half at once, then single tokens."""
    length = min(case.inputs["target"].shape[1], sizes.get("room", LONG))
    mask = np.ones((sizes.get("rows", B), length), bool)
    splits = (max(1, length // 2), *[1] * (length - max(1, length // 2)))
    inputs = {"target": ids_of(case.config, "target", mask), "target_mask_bt": mask, "splits": splits}
    return dataclasses.replace(case, name=f"{FIXED}steps", inputs=dict(case.inputs) | inputs, core=True)


def _of_decoder(config: TransformerConfig) -> Iterator[Case]:
    yield from (case for case in of_decoder(config) if case.component != "states")
    for name, inputs in _others(config, ("target",)):
        yield Case(name, "transformer", config, {"source": None} | inputs)
    yield from _outside(Case("", "transformer", config, {"source": None} | full(config, {"target": (2, SHORT)})), ("target",))


def _of_encoder(config: TransformerConfig) -> Iterator[Case]:
    heads = {"pool": config.pooler, "classify": config.classes, "masked_language_logits": config.masked_language_head}
    components = ("token_encoder", *(name for name, present in heads.items() if present), *FILES)
    for component in components:
        for name, inputs in (*prompts_of(config, "source", "source_mask_bs"), *_others(config, ("source",))):
            yield case_of(name, component, config, inputs)
        if config.segments > 1:
            mask = ragged(B, length_of(config, PADDED))
            segment_bs = (np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2).astype(int)
            yield Case("two_segments", component, config, _masked(config, {"source": mask}) | {"segment_bs": segment_bs})
        inputs = full(config, {"source": (2, SHORT)})
        segments = {"segment_bs": np.zeros_like(inputs["source"])} if config.segments > 1 else {}
        yield from _outside(Case("", component, config, inputs | segments), ("source", *segments))


def _of_both(config: TransformerConfig) -> Iterator[Case]:
    """Yields forward passes, and the same in steps: the encoder once, the decoder with a cache."""
    shapes = {
        "short": ((1, SHORT), (1, SHORT - 2)),
        "one_token": ((1, 1), (1, 1)),
        "one_source_token": ((2, 1), (2, SHORT)),
        "one_target_token": ((2, SHORT), (2, 1)),
        "batch": ((B, SHORT), (B, SHORT + 2)),
        "medium": ((1, MEDIUM), (1, MEDIUM - 9)),
        "long": ((1, LONG), (1, LONG - 50)),
    }
    for name, (source, target) in shapes.items():
        yield Case(name, "transformer", config, full(config, {"source": source, "target": target}), core=name in CORE)
    source_bs, target_bt = ragged(B, length_of(config, PADDED)), ragged(B, length_of(config, PADDED - 2))[::-1]
    alone_bs, long_bs = _ends_early(1, length_of(config, PADDED)), _ends_early(2, length_of(config, LONG))
    columns_bs, columns_bt = (_columns(B, length_of(config, length)) for length in (PADDED, PADDED - 2))
    masks: dict[str, dict[str, np.ndarray]] = {
        "right_padding": {"source": source_bs, "target": target_bt},
        "left_padding": {"source": source_bs[:, ::-1], "target": target_bt[:, ::-1]},
        "source_padding": {"source": source_bs, "target": np.ones_like(target_bt)},
        "left_padding_alone": {"source": alone_bs[:, ::-1], "target": alone_bs[:, ::-1]},
        "right_padding_columns": {"source": columns_bs, "target": columns_bt},
        "left_padding_columns": {"source": columns_bs[:, ::-1], "target": columns_bt[:, ::-1]},
        "long_left_padding": {"source": long_bs[:, ::-1], "target": long_bs[:, ::-1]},
    }
    for name, given in masks.items():
        yield Case(name, "transformer", config, _masked(config, given), core=name in CORE)
    for name, inputs in _others(config, ("source", "target")):
        yield Case(name, "transformer", config, inputs)
    length = target_bt.shape[1]
    first = max(1, length // 2)
    for name in ("right_padding", "left_padding"):
        case = Case(f"{name}_in_steps", "transformer", config, _masked(config, masks[name]), core=True)
        yield dataclasses.replace(case, splits=(first, *[1] * (length - first)))
    length = length_of(config, LONG)
    inputs = full(config, {"source": (1, LONG), "target": (1, LONG)})
    yield Case("long_in_steps", "transformer", config, inputs, dtypes=SINGLE, splits=(length - 4, 1, 1, 2))
    yield from _outside(Case("", "transformer", config, full(config, {"source": (2, SHORT), "target": (2, SHORT)})), ("source", "target"))


def _others(config: TransformerConfig, sides: Sequence[str]) -> Iterator[tuple[str, Inputs]]:
    """Yields another batch size, and an empty row among others."""
    length = length_of(config, PADDED)
    yield "five_rows", full(config, dict.fromkeys(sides, (ROWS, length)))
    mask = ragged(3, length)
    mask[1] = False
    yield "empty_row", _masked(config, {sides[0]: mask} | {side: ragged(3, length) for side in sides[1:]})


def _outside(case: Case, sides: Sequence[str]) -> Iterator[Case]:
    """Yields the case with ids outside each vocabulary, and with an invalid segment."""
    for side in sides:
        for name, id_ in zip(OUTSIDE, (-1, ids_in(case.config, side)), strict=True):
            yield _with_id(dataclasses.replace(case, name=f"{side.removesuffix('_bs')}_id_{name}", outside=side), side, id_)


def _with_id(case: Case, side: str, id_: int) -> Case:
    ids = case.inputs[side].copy()
    ids[-1, ids.shape[1] // 2] = id_
    return dataclasses.replace(case, inputs=dict(case.inputs) | {side: ids})


def ids_in(config: TransformerConfig, side: str) -> int:
    """Returns the vocabulary size of a side, or the number of segments."""
    return config.segments if side == "segment_bs" else int(getattr(config, f"{side}_vocabulary"))


def outside_id(case: Case) -> int:
    """Returns the case's id out of range."""
    ids = case.inputs[case.outside]
    return int(ids[(ids < 0) | (ids >= ids_in(case.config, case.outside))][0])


def full(config: TransformerConfig, shapes: Mapping[str, tuple[int, int]]) -> Inputs:
    """Returns the ids of texts without padding, by side."""
    return {side: ids_of(config, side, np.ones((rows, length_of(config, length)), bool)) for side, (rows, length) in shapes.items()}


def _masked(config: TransformerConfig, masks: Mapping[str, np.ndarray]) -> Inputs:
    found: Inputs = {side: ids_of(config, side, mask) for side, mask in masks.items()}
    return found | {MASKS[side]: mask for side, mask in masks.items()}
