"""Folders of Hugging Face's transformers: config.json and safetensors, one file or shards. A table for each family.

What a folder says and the config does not hold, such as labels and ids of tokens, is in `Checkpoint.foreign`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from .. import Checkpoint
from ..container import Written
from . import bert, gpt2, reading, writing
from .reading import Examination
from .writing import companions

__all__ = ["FAMILIES", "LOAD_OPTIONS", "SAVE_OPTIONS", "Examination", "companions", "examine", "save", "view"]

FAMILIES = {family.model_type: family for family in (bert.FAMILY, gpt2.FAMILY)}
LOAD_OPTIONS = ("ignore", "leave_out")
SAVE_OPTIONS = ("max_shard_bytes", "tokenizer")


def view(path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint in a folder, or in a file or an index within it, whose parameters are views of its files.

    ignore: tensors, and entries of config.json, that are taken for absent. leave_out: heads without which the model is read, whether they
    are there or not: pooler, masked_language_head, classifier, and those that are not supported, such as next_sentence_head.
    Raises ValueError listing every problem: shards, entries that are not supported; missing, unexpected and misshapen tensors; those of other
    heads, with how to leave them out; ties that contradict config.json; dtypes; values that are not finite.
    """
    return examine(path, ignore=ignore, leave_out=leave_out).checkpoint()


def examine(path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = ()) -> Examination:
    """As `view`, with the problems in what is returned, and what becomes of every tensor.

    Raises ValueError where there is no config.json of a supported family, or no safetensors.
    """
    return reading.examine(Path(path), FAMILIES, ignore, leave_out)


def save(
    path: str | Path,
    config: TransformerConfig,
    parameters: Mapping[str, np.ndarray],
    *,
    foreign: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    written: Written = lambda count: None,
    max_shard_bytes: int | None = None,
    tokenizer: str | Path | None = None,
) -> None:
    """Writes a new folder, whole or not at all. foreign, dtype, written: as of `checkpoints.save`; tokenizer: a folder whose tokenizer's
    files are copied.

    Raises ValueError on what no family has, on parameters that do not fit the config, and where something is at the path.
    """
    path, beside = Path(path), tokenizer and Path(tokenizer)
    writing.save(path, FAMILIES, config, parameters, foreign or {}, dtype, written, max_shard_bytes, beside or None)
