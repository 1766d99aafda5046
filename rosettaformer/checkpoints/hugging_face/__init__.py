"""Folders of Hugging Face's transformers: config.json with safetensors or torch.save files, single or in shards. One table for each family.

`Checkpoint.foreign` holds what a folder says beyond the config, such as labels and token ids.
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
    """Returns the family of a folder, or of the folder of a file, whose tensors have these names: by config.json's model_type, or by its
    class or the tensors if it has none. None if the family is not supported.
    """
    try:
        return reading.family_of(FAMILIES, recognise.hugging_face_config(path), names)
    except (OSError, ValueError):
        return None


def view(path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = (), spare: Sequence[str] = ()) -> Checkpoint:
    """Returns the checkpoint in a folder, or in a file or an index within it, with parameters that are views of its files.

    ignore: tensors, and entries of config.json and generation_config.json, that are treated as absent. leave_out: heads that are not read,
    whether present or not: pooler, masked_language_head, classifier, and unsupported ones such as next_sentence_head. spare: heads that are
    optional.
    Raises ValueError listing every problem: shards; unsupported entries; missing, unexpected and misshapen tensors; those of other heads,
    with how to leave them out; ties that contradict config.json; dtypes; values that are not finite.
    """
    return examine(path, ignore=ignore, leave_out=leave_out, spare=spare).checkpoint()


def examine(
    path: str | Path, *, ignore: Sequence[str] = (), leave_out: Sequence[str] = (), spare: Sequence[str] = ()
) -> Examination:  # fmt: skip
    """Like `view`, but returns the problems, and the state of every tensor.

    Raises ValueError if there is no config.json of a supported family, or no safetensors.
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
    """Writes a new folder, whole or not at all. foreign, dtype, written: see `checkpoints.save`; tokenizer: a folder whose tokenizer files
    are copied.

    Raises ValueError if no family can express the config, if parameters do not fit it, and if the path exists.
    """
    path, beside = Path(path), tokenizer and Path(tokenizer)
    writing.save(path, FAMILIES, config, parameters, foreign or {}, dtype, written, max_shard_bytes, beside or None)
