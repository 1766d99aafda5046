"""Cases of a whole model by its logits: a folder as Hugging Face writes it, prompts, and what a port gives of them.

A short prompt hides most mistakes: of positions beyond a window or an original length, of padding, of batches, of cached steps. Each of
these is a case here. What stands at padding is compared with nothing.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh

from ...checkpoints import view
from ..case import DTYPES, REAL, Case
from ..reference.components import VJP
from ..stored import Stored
from .build import ragged
from .checkpoint import ids_of, length_of
from .fitting import fits, fitting
from .gradients import gradient
from .meshes import on_meshes

B, UNEVEN, SHORT, PADDED = 4, 5, 7, 19
MEDIUM, LONG = 100, 600  # tokens beyond small windows and original lengths; beyond 500
FAR = 1200  # tokens from which on frequencies in half precision show
SINGLE, HALF = ("float64", "float32"), ("bfloat16", "float16")
CORE = ("short", "medium", "long", "far", "left_padding", "steps")  # what diagnosis asks in every dtype
STATES = ("short", "left_padding", "long")


def like_cases(
    folder: Path, meshes: Sequence[Mesh] = (), own: Path | None = None, dtypes: Sequence[str] = (), memory: float | None = None
) -> list[Case]:  # fmt: skip
    """Returns the cases of the model in a folder that holds it in each dtype, in folders named after them; if meshes are given, those of
    its loss too, for each mesh.

    own: the folder of which they are or will be made; the first of them if None. dtypes: theirs; by
    default of those that exist.
    memory: see `fitting`.
    Raises ValueError listing everything that is wrong with it, and if a mesh does not divide it.
    """
    dtypes = tuple(dtype for dtype in DTYPES if (dtype in dtypes if dtypes else (folder / dtype).exists()))
    checkpoint = view(own or folder / dtypes[0], "hugging-face")
    config, stored = checkpoint.config, Stored.of(checkpoint)
    common: dict[str, Any] = {"parameters": dict(stored) if meshes else stored, "folder": str(folder), "compared": REAL}
    padding = checkpoint.foreign["config.json"].get("pad_token_id")
    made = (_of_encoder if config.encoder_layers else of_decoder)(config)
    found = [dataclasses.replace(case, **common, inputs=_without_padding_id(case, padding)) for case in made]
    found = fitting((_in(dtypes, case) for case in found), memory)
    found += [_gradient(case, memory) for case in found if case.name in ("short", "left_padding") and case.component != "states"]
    if meshes and config.decoder_layers:
        found += [dataclasses.replace(case, **common | {"compared": ""}) for case in _of_training(config)]
    found = [_in(dtypes, case).at("float64") for case in found]
    return on_meshes(found, meshes) if meshes else found


def of_decoder(config: TransformerConfig) -> Iterator[Case]:
    for component in ("transformer", "states"):
        for name, inputs in prompts_of(config, "target", "target_mask_bt"):
            if component != "states" or name in STATES:
                yield case_of(name, component, config, {"source": None} | inputs)
    for name, length, first in (("steps", PADDED, PADDED // 2), ("medium_steps", MEDIUM, MEDIUM - 9), ("long_steps", LONG + 6, LONG)):
        length = length_of(config, length)
        first = min(first, length - 1)
        rows = 1 if name == "long_steps" else B
        mask = ragged(rows, length)[:, ::-1]
        single = min(4, length - first)
        splits = (first, *[1] * single, *([length - first - single] if length - first > single else []))
        inputs = {"target": ids_of(config, "target", mask), "memory_bsd": None, "target_mask_bt": mask, "splits": splits}
        yield case_of(name, "decode_in_steps", config, inputs)


def _of_encoder(config: TransformerConfig) -> Iterator[Case]:
    for component in (*(["masked_language_logits"] if config.masked_language_head else []), "states"):
        for name, inputs in prompts_of(config, "source", "source_mask_bs"):
            if component != "states" or name in STATES:
                yield case_of(name, component, config, inputs)
        if config.segments > 1:
            mask = ragged(B, length_of(config, PADDED))
            segment_bs = (np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2).astype(int)
            inputs = {"source": ids_of(config, "source", mask), "source_mask_bs": mask, "segment_bs": segment_bs}
            yield case_of("two_segments", component, config, inputs)


def case_of(name: str, component: str, config: TransformerConfig, inputs: dict[str, Any]) -> Case:
    states = component == "states"
    outputs = ("encoder.hidden_lbtd", "decoder.hidden_lbtd") if states else ()
    dtypes = SINGLE if states or name in ("long_steps", "long_left_padding") else HALF if name == "far" else DTYPES
    return Case(name, component, config, inputs, dtypes=dtypes, outputs=outputs, core=name in CORE)


def prompts_of(config: TransformerConfig, side: str, mask_name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields prompts by name: the one that everybody tries, one token, rows alone and in batches, padding on either side, long ones."""
    long, padded = length_of(config, LONG), length_of(config, PADDED)
    full = {"short": (1, SHORT), "one_token": (1, 1), "batch": (B, SHORT + 2), "medium": (1, MEDIUM), "long": (1, long), "far": (1, FAR)}
    for name, (rows, length) in full.items():
        yield name, {side: ids_of(config, side, np.ones((rows, length_of(config, length)), bool))}
    masks = {
        "right_padding": ragged(B, padded),
        "left_padding": ragged(B, padded)[:, ::-1],
        "left_padding_alone": np.arange(padded)[None] >= padded // 3,
        "long_left_padding": np.arange(long)[None] >= np.array([[0], [long // 3]]),
    }
    for name, mask in masks.items():
        yield name, {side: ids_of(config, side, mask), mask_name: mask}


def _of_training(config: TransformerConfig) -> Iterator[Case]:
    """Yields batches that few meshes divide, of which one has rows with unequal numbers of labels, the last with none."""
    masks = {"batch": np.ones((UNEVEN, SHORT + 2), bool), "right_padding": ragged(UNEVEN, SHORT + 2)}
    for name, mask in masks.items():
        inputs = {"target": ids_of(config, "target", mask), "target_mask_bt": mask}
        yield Case(name, "training", config, inputs, dtypes=SINGLE, core=name == "right_padding")


def _without_padding_id(case: Case, padding: Any) -> dict[str, Any]:
    """Returns the inputs, in which no real token has the id of padding, and every padding token has it."""
    inputs = dict(case.inputs)
    side = next(side for side in ("target", "source") if inputs.get(side) is not None)
    if type(padding) is int:
        ids, real_bt = inputs[side], True if case.real_bt is None else case.real_bt
        other = (padding + 1) % getattr(case.config, f"{side}_vocabulary")
        inputs[side] = np.where(real_bt, np.where(ids == padding, other, ids), padding)
    return inputs


def _in(dtypes: Sequence[str], case: Case) -> Case:
    """Returns the case in those of its dtypes that are among these."""
    return dataclasses.replace(case, dtypes=tuple(dtype for dtype in case.dtypes if dtype in dtypes))


def _gradient(case: Case, memory: float | None) -> Case:
    """Returns the case of its gradients by the parameters, of a cotangent that is 0 at padding."""
    asked = dataclasses.replace(case, component=case.component + VJP, dtypes=tuple(dtype for dtype in case.dtypes if dtype in SINGLE))
    (asked,) = fitting([asked], memory, required=False)
    if not fits(asked):  # the cotangent has the shape of an output, which takes long to compute
        return asked
    found = gradient(case)
    cotangent = case.part({"output": found.inputs["cotangent"]})["output"]
    names = tuple(f"parameters.{name}" for name in case.parameters)
    inputs = dict(found.inputs) | {"cotangent": cotangent}
    return dataclasses.replace(
        found, inputs=inputs, outputs=names, dtypes=asked.dtypes, too_large=asked.too_large, compared="", since=case.since
    )
