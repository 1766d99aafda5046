"""The canonical checkpoint: a safetensors file of parameters under their canonical names, with config and ties in its metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy import parameters as declaration

from . import container, evidence, sharded, strict
from .checkpoint import Checkpoint, CheckpointError
from .container import Container
from .replacing import replacing

__all__ = ["FORMAT", "LOAD_OPTIONS", "SAVE_OPTIONS", "VERSION", "is_canonical", "load", "save"]

FORMAT = "rosettaformer"
VERSION = "1"
LOAD_OPTIONS = ()
SAVE_OPTIONS = ("max_shard_bytes",)


def save(path: str | Path, config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, max_shard_bytes: int | None = None) -> None:
    """Writes the canonical file, or with `max_shard_bytes` a folder of shards with their index: whole, or not at all.

    Raises ValueError listing every parameter that does not fit the config, differs in dtype or is not finite.
    """
    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in parameters.items()}
    if problems := _tensor_problems(config, arrays) + list(strict.value_problems(arrays)):
        raise CheckpointError(path, problems)
    ordered = {name: arrays[name] for name in declaration.axes(config)}
    metadata = _metadata(config)
    if path.is_dir() and (max_shard_bytes is None or not sharded.is_checkpoint_folder(path)):
        raise ValueError(f"{path} is a folder that holds more than a sharded checkpoint" if max_shard_bytes else f"{path} is a folder")
    with replacing(path) as temporary:
        if max_shard_bytes is None:
            container.write(temporary, ordered, metadata)
        else:
            sharded.write(temporary, ordered, metadata, max_shard_bytes)


def load(path: str | Path) -> Checkpoint:
    """The checkpoint in a file, an index of shards or the folder of one.

    Raises ValueError listing every problem: of the container, the metadata, the config and the ties; missing, unexpected, misnamed,
    transposed and misshapen tensors; dtypes; values that are not finite.
    """
    path = Path(path)
    source = sharded.read(path)
    problems = list(source.problems)
    config = None
    if source.tensors or not problems:  # otherwise there is not even a header
        config, metadata_problems = _read_metadata(source)
        problems += metadata_problems
        problems += _tensor_problems(config, source.tensors) if config else list(strict.dtype_problems(source.tensors))
    arrays = source.arrays()
    problems += strict.value_problems(arrays)
    if problems or config is None:
        raise CheckpointError(path, problems)
    return Checkpoint(config, {name: arrays[name] for name in declaration.axes(config)})


def is_canonical(source: Container) -> bool:
    """Whether a container claims to be a canonical checkpoint, be it a damaged one."""
    config = _json(source.metadata.get("config") or source.config_beside or "")
    return source.metadata.get("format") == FORMAT or (isinstance(config, dict) and "model_width" in config)


def _metadata(config: TransformerConfig) -> dict[str, str]:
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "config": json.dumps(config.to_dict()),
        "ties": json.dumps(declaration.ties(config)),
    }


def _read_metadata(source: Container) -> tuple[TransformerConfig | None, list[str]]:
    fields = source.metadata
    if "config" not in fields and source.config_beside is not None:
        # tools that reshard a file keep its tensors but not its metadata; what they keep must still be true
        fields = {"ties": "", **fields, "format": FORMAT, "config": source.config_beside}
        fields = {"format_version": VERSION, **fields}
    problems = []
    if fields.get("format") != FORMAT:
        problems.append(f"metadata must name the format {FORMAT!r}; got {fields.get('format')!r} (a foreign file? see convert)")
    if fields.get("format_version") != VERSION:
        problems.append(f"the format version must be {VERSION!r}; got {fields.get('format_version')!r}")
    config, config_problems = _config(fields.get("config"))
    problems += config_problems
    if config and fields.get("ties") != "":
        problems += _tie_problems(config, fields.get("ties"))
    return config, problems


def _config(text: str | None) -> tuple[TransformerConfig | None, list[str]]:
    if text is None:
        return None, ["metadata must hold the config"]
    fields = _json(text)
    if not isinstance(fields, dict):
        return None, ["the config must be a JSON object"]
    try:
        return TransformerConfig.from_dict(fields), []
    except ValueError as error:
        return None, [f"config: {error}"]


def _tie_problems(config: TransformerConfig, text: str | None) -> list[str]:
    if text is None:
        return ["metadata must hold the ties"]
    ties, declared = _json(text), declaration.ties(config)
    return [] if ties == declared else [f"ties contradict the config, which declares {_show(declared)}; got {_show(ties)}"]


def _tensor_problems(config: TransformerConfig, tensors: Mapping[str, strict.TensorLike]) -> list[str]:
    believed, problems = evidence.contradictions(config, tensors)
    reasons = {name: f": the config ties it to {stored}" for name, stored in declaration.ties(believed).items()}
    problems += strict.match_problems(tensors, declaration.shapes(believed), reasons)
    return problems + list(strict.dtype_problems(tensors))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _show(ties: Any) -> str:
    return json.dumps(ties)[:500]
