"""Cases on a user's own weights."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ...files.checkpoints import own_format, view
from ..case import DTYPES, Case
from ..stored import Stored
from .build import ragged, rng

B, S, T = 4, 19, 17
LONG = 128  # tokens in a typical text
TOKENS = 8  # tokens that a search generates
SINGLE = ("float64", "float32")  # dtypes of the longer cases

Inputs = dict[str, Any]


def checkpoint_cases(path: Path, ignore: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Case]:
    """Returns whole-model cases on the weights of a canonical file or Hugging Face folder.

    An encoder-only model has a case for each head's output, other models for the logits, a model
    with one stack also for the hidden states, and a decoder-only model for incremental decoding and
    a search. Rows are full, padded on either side (if the model takes masks), of two segments (if
    it has segments), and as long as typical texts. Checkpoints with the same vocabularies and
    lengths get the same inputs.

    ignore: see `hugging_face.view`. dtypes: by default the `usual` ones. Raises ValueError that
    lists everything wrong with the file.
    """
    checkpoint = view(path, own_format(path), ignore=ignore)
    config, stored = checkpoint.config, Stored.of(checkpoint)
    of = _of_both if config.cross_attention else _of_encoder if config.encoder_layers else _of_decoder
    asked = dtypes or usual(str(next(iter(checkpoint.parameters.values())).dtype))
    cases = (
        dataclasses.replace(case, parameters=stored, dtypes=tuple(dtype for dtype in case.dtypes if dtype in asked)) for case in of(config)
    )
    return [case for case in cases if case.dtypes]


def usual(dtype: str) -> tuple[str, ...]:
    """Returns a whole model's default dtypes: float32, and the checkpoint's own."""
    return tuple(each for each in DTYPES if each in ("float32", dtype))


def _of_both(config: TransformerConfig) -> Iterator[Case]:
    masks = {"checkpoint": (np.ones((B, S), bool), np.ones((B, T), bool))}
    if config.padding_id is not None:
        masks["checkpoint_ragged"] = (ragged(B, S), ragged(B, T)[::-1])
    for name, (source, target) in masks.items():
        yield Case(name, "transformer", config, {"source": ids_of(config, "source", source), "target": ids_of(config, "target", target)})


def _of_encoder(config: TransformerConfig) -> Iterator[Case]:
    heads = {"pool": config.pooler, "classify": config.classes, "masked_language_logits": config.masked_language_head}
    for component in (*(name for name, present in heads.items() if present), "states"):
        for name, inputs, dtypes in _texts(config, "source", "source_mask_bs"):
            yield _case(name, component, config, inputs, dtypes)
        if config.segments > 1:
            mask = ragged(B, length_of(config, S))
            segment_bs = (np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2).astype(int)
            inputs = {"source": ids_of(config, "source", mask), "source_mask_bs": mask, "segment_bs": segment_bs}
            yield _case("checkpoint_two_segments", component, config, inputs)


def _of_decoder(config: TransformerConfig) -> Iterator[Case]:
    for component in ("transformer", "states"):
        for name, inputs, dtypes in _texts(config, "target", "target_mask_bt"):
            yield _case(name, component, config, {"source": None, **inputs}, dtypes)
    length = length_of(config, T)
    mask = ragged(B, length)[:, ::-1]
    inputs = {"target": ids_of(config, "target", mask), "memory_bsd": None, "target_mask_bt": mask}
    yield _case("checkpoint", "decode_in_steps", config, inputs | {"splits": (length - length // 2, *[1] * (length // 2))}, SINGLE)
    tokens = min(TOKENS, length_of(config, T + TOKENS) // 2)
    mask = ragged(B, length_of(config, T + TOKENS) - tokens)[:, ::-1]
    inputs = {"source": None, "prefix": ids_of(config, "target", mask), "prefix_mask_bp": mask}
    strategy = {"start_id": None, "end_id": config.target_vocabulary - 1, "max_new_tokens": tokens}
    yield _case("checkpoint", "greedy_search", config, inputs | {f"strategy.{key}": value for key, value in strategy.items()}, SINGLE[1:])


def _case(name: str, component: str, config: TransformerConfig, inputs: Inputs, dtypes: tuple[str, ...] = DTYPES) -> Case:
    return Case(name, component, config, inputs, dtypes=SINGLE if component == "states" else dtypes)


def _texts(config: TransformerConfig, side: str, mask_name: str) -> Iterator[tuple[str, Inputs, tuple[str, ...]]]:
    """Yields name, inputs and dtypes: full rows, rows padded on either side, and a long row."""
    length = length_of(config, S)
    yield "checkpoint", {side: ids_of(config, side, np.ones((B, length), bool))}, DTYPES
    for name, mask in (("right", ragged(B, length)), ("left", ragged(B, length)[:, ::-1])):
        yield f"checkpoint_{name}_padding", {side: ids_of(config, side, mask), mask_name: mask}, DTYPES
    if (long := length_of(config, LONG)) > length:
        yield "checkpoint_long", {side: ids_of(config, side, np.ones((1, long), bool))}, SINGLE


def length_of(config: TransformerConfig, wanted: int) -> int:
    """Returns the length, limited to the model's number of positions."""
    return min(wanted, config.max_positions or wanted)


def ids_of(config: TransformerConfig, side: str, mask: np.ndarray) -> np.ndarray:
    """Returns random ids, with the padding id (if there is one) exactly where the mask is False."""
    vocabulary, padding_id = getattr(config, f"{side}_vocabulary"), config.padding_id
    ids = rng(f"checkpoint {side}").integers(0, vocabulary, mask.shape)
    if padding_id is None:
        return ids
    return np.where(mask, np.where(ids == padding_id, (padding_id + 1) % vocabulary, ids), padding_id)
