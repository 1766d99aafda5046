"""Folders of Hugging Face's transformers: config.json and safetensors or files of torch.save, one or shards. A table for each family.

What a folder says and the config does not hold, such as labels and ids of tokens, is in `Checkpoint.foreign`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from .. import Checkpoint, recognise
from ..container import Written
from . import bert, gpt2, reading, writing
from .family import Family
from .reading import Examination
from .writing import companions

__all__ = ["FAMILIES", "LOAD_OPTIONS", "SAVE_OPTIONS", "Examination", "companions", "examine", "family_of", "save", "view"]

FAMILIES = {family.model_type: family for family in (bert.FAMILY, gpt2.FAMILY)}
LOAD_OPTIONS = ("ignore", "leave_out", "spare")
SAVE_OPTIONS = ("max_shard_bytes", "tokenizer")


def family_of(path: Path, names: Iterable[str]) -> Family | None:
    """The family of a folder, or of that of a file within it, whose tensors have these names: as config.json says, or where it has no
    model_type, as its class or the tensors do. None where it is none of those that are read.
    """
    try:
        return reading.family_of(FAMILIES, recognise.hugging_face_config(path), names)
    except (OSError, ValueError):
        return None


def view(path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = (), spare: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint in a folder, or in a file or an index within it, whose parameters are views of its files.

    ignore: tensors, and entries of config.json and generation_config.json, that are taken for absent. leave_out: heads without which the
    model is read, whether they are there or not: pooler, masked_language_head, classifier, and those that are not supported, such as
    next_sentence_head. spare: heads without which it is read where they are not there.
    Raises ValueError listing every problem: shards; entries that are not supported; missing, unexpected and misshapen tensors; those of
    other heads, with how to leave them out; ties that contradict config.json; dtypes; values that are not finite.
    """
    return examine(path, ignore=ignore, leave_out=leave_out, spare=spare).checkpoint()


def examine(
    path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = (), spare: Sequence[str] = ()
) -> Examination:  # fmt: skip
    """As `view`, with the problems in what is returned, and what becomes of every tensor.

    Raises ValueError where there is no config.json of a supported family, or no safetensors.
    """
    return reading.examine(Path(path), FAMILIES, ignore, leave_out, spare)


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
