"""Cases of a file that was made of a checkpoint: of the whole model, as people ask it, where exports break.

They ask other numbers of rows than 1, other lengths than an example has, one token, long texts, padding on either side, a row without a
token, steps with a cache, and ids out of range.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ...checkpoints import Checkpoint, load, recognised
from ..case import REAL, Case
from .build import ragged
from .checkpoint import ids_of, length_of
from .like import CORE, LONG, MEDIUM, PADDED, SHORT, B, case_of, of_decoder, prompts_of

ROWS = 5  # a number of rows that no example has
OUTSIDE = ("minus_one", "vocabulary")  # ids that no vocabulary has
FIXED = "fixed"  # the name of a case that has the lengths of a file
Inputs = dict[str, Any]


def opened(path: Path, leave_out: Sequence[str] = (), ignore: Sequence[str] = ()) -> Checkpoint:
    """Returns the checkpoint: a canonical file, or a Hugging Face folder. Raises ValueError listing everything that is wrong with it."""
    # The canonical reader says what other files are: in some formats a file by itself does not show the config.
    return load(path, found if (found := recognised(path)) == "hugging-face" else "canonical", leave_out=leave_out, ignore=ignore)


def artefact_cases(path: Path, checkpoint: Checkpoint) -> list[Case]:
    """Returns the cases of every file that may have been made of the checkpoint at that path."""
    config = checkpoint.config
    of = _of_both if config.cross_attention else _of_encoder if config.encoder_layers else _of_decoder
    common: dict[str, Any] = {"parameters": checkpoint.parameters, "folder": str(path), "compared": REAL}
    return [dataclasses.replace(case, **common) for case in of(config)]


def fixed_cases(cases: Sequence[Case], sizes: Mapping[str, int]) -> list[Case]:
    """Returns the cases with those of the sizes that a file fixes: rows, source, target. Full rows, and rows that are padded."""
    if not sizes:
        return list(cases)
    found = []
    for case in cases:
        if case.name == "batch" and not case.splits:
            found += [_sized(case, sizes, padded) for padded in (False, True)]
    return [*found, *cases]


def _sized(case: Case, sizes: Mapping[str, int], padded: bool) -> Case:
    inputs = dict(case.inputs)
    for side, name in (("source", "source_mask_bs"), ("target", "target_mask_bt")):
        if inputs.get(side) is not None:
            rows, length = sizes.get("rows", B), sizes.get(side, inputs[side].shape[1])
            mask = ragged(rows, length) if padded else np.ones((rows, length), bool)
            inputs |= {side: ids_of(case.config, side, mask)} | ({name: mask} if padded else {})
    return dataclasses.replace(case, name=f"{FIXED}_padding" if padded else FIXED, inputs=inputs, core=True)


def _of_decoder(config: TransformerConfig) -> Iterator[Case]:
    yield from (case for case in of_decoder(config) if case.component != "states")
    for name, inputs in _others(config, ("target",)):
        yield Case(name, "transformer", config, {"source": None} | inputs)
    yield from _outside(Case("", "transformer", config, {"source": None} | _full(config, {"target": (2, SHORT)})), ("target",))


def _of_encoder(config: TransformerConfig) -> Iterator[Case]:
    heads = {"pool": config.pooler, "classify": config.classes, "masked_language_logits": config.masked_language_head}
    components = ("token_encoder", *(name for name, present in heads.items() if present))
    for component in components:
        for name, inputs in (*prompts_of(config, "source", "source_mask_bs"), *_others(config, ("source",))):
            yield case_of(name, component, config, inputs)
        if config.segments > 1:
            mask = ragged(B, length_of(config, PADDED))
            segment_bs = (np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2).astype(int)
            yield Case("two_segments", component, config, _masked(config, {"source": mask}) | {"segment_bs": segment_bs})
        yield from _outside(Case("", component, config, _full(config, {"source": (2, SHORT)})), ("source",))


def _of_both(config: TransformerConfig) -> Iterator[Case]:
    """Yields whole passes, and the same in steps: the encoder once, the decoder with a cache."""
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
        yield Case(name, "transformer", config, _full(config, {"source": source, "target": target}), core=name in CORE)
    source_bs, target_bt = ragged(B, length_of(config, PADDED)), ragged(B, length_of(config, PADDED - 2))[::-1]
    masks: dict[str, dict[str, np.ndarray]] = {
        "right_padding": {"source": source_bs, "target": target_bt},
        "left_padding": {"source": source_bs[:, ::-1], "target": target_bt[:, ::-1]},
        "source_padding": {"source": source_bs, "target": np.ones_like(target_bt)},
    }
    for name, given in masks.items():
        yield Case(name, "transformer", config, _masked(config, given), core=name in CORE)
    for name, inputs in _others(config, ("source", "target")):
        yield Case(name, "transformer", config, inputs)
    length = target_bt.shape[1]
    first = max(1, length // 2)
    for name in ("right_padding", "left_padding"):
        case = Case(f"{name}_in_steps", "transformer", config, _masked(config, masks[name]), dtypes=("float64", "float32"), core=True)
        yield dataclasses.replace(case, splits=(first, *[1] * (length - first)))
    yield from _outside(Case("", "transformer", config, _full(config, {"source": (2, SHORT), "target": (2, SHORT)})), ("source", "target"))


def _others(config: TransformerConfig, sides: Sequence[str]) -> Iterator[tuple[str, Inputs]]:
    """Yields another number of rows, and a row without a token among others."""
    length = length_of(config, PADDED)
    yield "five_rows", _full(config, dict.fromkeys(sides, (ROWS, length)))
    mask = ragged(3, length)
    mask[1] = False
    yield "empty_row", _masked(config, {sides[0]: mask} | {side: ragged(3, length) for side in sides[1:]})


def _outside(case: Case, sides: Sequence[str]) -> Iterator[Case]:
    """Yields the case with an id of each side that its vocabulary does not have."""
    for side in sides:
        for name, id_ in zip(OUTSIDE, (-1, getattr(case.config, f"{side}_vocabulary")), strict=True):
            ids = case.inputs[side].copy()
            ids[1, 2] = id_
            yield dataclasses.replace(case, name=f"{side}_id_{name}", inputs=dict(case.inputs) | {side: ids}, outside=side)


def _full(config: TransformerConfig, shapes: Mapping[str, tuple[int, int]]) -> Inputs:
    return {side: ids_of(config, side, np.ones((rows, length_of(config, length)), bool)) for side, (rows, length) in shapes.items()}


def _masked(config: TransformerConfig, masks: Mapping[str, np.ndarray]) -> Inputs:
    names = {"source": "source_mask_bs", "target": "target_mask_bt"}
    found: Inputs = {side: ids_of(config, side, mask) for side, mask in masks.items()}
    return found | {names[side]: mask for side, mask in masks.items()}
