"""The canonical checkpoint: a safetensors file of parameters under their canonical names, with config and ties in its metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy import parameters as declaration

from ..atomic import replacing
from ..reading import parse_json
from . import Checkpoint, CheckpointError, container, recognise, strict
from .container import Container

__all__ = ["FORMAT", "LOAD_OPTIONS", "SAVE_OPTIONS", "VERSION", "is_canonical", "load", "metadata", "save", "validate"]

FORMAT = "rosettaformer"
VERSION = "1"
LOAD_OPTIONS = ()
SAVE_OPTIONS = ("max_shard_bytes",)


def save(path: str | Path, config: TransformerConfig, parameters: Mapping[str, np.ndarray], *, max_shard_bytes: int | None = None) -> None:
    """Writes the canonical file, or with `max_shard_bytes` a new folder of shards with their index: whole, or not at all.

    Raises ValueError listing every parameter that does not fit the config, differs in dtype or is not finite.
    """
    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in parameters.items()}
    if problems := strict.problems(arrays, declaration.shapes(config)):
        raise CheckpointError(path, problems)
    if path.is_dir() or (path.exists() and max_shard_bytes):
        raise ValueError(f"{path} is {'there: shards need a new folder' if max_shard_bytes else 'a folder'}")
    ordered = {name: arrays[name] for name in declaration.axes(config)}
    with replacing(path) as temporary:
        if max_shard_bytes is None:
            container.write(temporary, ordered, metadata(config))
        else:
            container.write_shards(temporary, ordered, metadata(config), max_shard_bytes)


def load(path: str | Path) -> Checkpoint:
    """The checkpoint in a file, an index of shards or the folder of one; raises ValueError as `validate`."""
    return validate(container.read(Path(path)), path)


def validate(source: Container, name: str | Path) -> Checkpoint:
    """The checkpoint in a container.

    Raises ForeignError on another program's model, and otherwise ValueError listing every problem: of the container, the metadata, the
    config and the ties; missing, unexpected, misnamed, transposed and misshapen tensors; dtypes; values that are not finite.
    """
    if not source.problems and not is_canonical(source):
        recognise.refuse_tensors(source.tensors, name)
    problems = list(source.problems)
    config = None
    if source.tensors or not problems:  # otherwise there is nothing to judge
        config, metadata_problems = _read_metadata(source.metadata)
        problems += metadata_problems
        problems += _tensor_problems(config, source.tensors) if config else strict.content_problems(source.tensors, {})
    if problems or config is None:
        raise CheckpointError(name, problems)
    return Checkpoint(config, {name: np.array(source.tensors[name]) for name in declaration.axes(config)})


def is_canonical(source: Container) -> bool:
    """Whether a container claims to be a canonical checkpoint, be it a damaged one."""
    return source.metadata.get("format") == FORMAT


def metadata(config: TransformerConfig) -> dict[str, str]:
    """What the file says of itself beside its tensors."""
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "config": json.dumps(config.to_dict()),
        "ties": json.dumps(declaration.ties(config)),
    }


def _read_metadata(fields: Mapping[str, str]) -> tuple[TransformerConfig | None, list[str]]:
    problems = []
    if fields.get("format") != FORMAT:
        problems.append(f"metadata must name the format {FORMAT!r}; got {fields.get('format')!r} (a foreign file? see convert)")
    if fields.get("format_version") != VERSION:
        problems.append(f"the format version must be {VERSION!r}; got {fields.get('format_version')!r}")
    values, ties = _json(fields, "config"), _json(fields, "ties")
    if not isinstance(values, dict):
        return None, [*problems, "metadata must hold the config, a JSON object"]
    try:
        config = TransformerConfig.from_dict(values)
    except ValueError as error:
        return None, [*problems, f"config: {error}"]
    if ties != declaration.ties(config):
        problems.append(f"ties contradict the config, which declares {json.dumps(declaration.ties(config))}; got {json.dumps(ties)[:500]}")
    return config, problems


def _tensor_problems(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> list[str]:
    believed, problems = strict.contradictions(config, tensors)
    problems += [f"the config ties {name} to {stored}" for name, stored in declaration.ties(believed).items() if name in tensors]
    return problems + strict.problems(tensors, declaration.shapes(believed))


def _json(fields: Mapping[str, str], name: str) -> Any:
    """What a field of the metadata holds as JSON; None where it is none."""
    try:
        return parse_json(fields.get(name, ""))
    except ValueError:
        return None
