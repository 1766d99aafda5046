"""The canonical checkpoint: safetensors with canonical names, and config and ties as metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy import parameters as declaration

from ...common.atomic import replacing
from ...common.reading import parse_json
from . import Checkpoint, CheckpointError, container, recognise, strict, tables
from .container import Container, Written

FORMAT = "rosettaformer"
VERSION = "1"
LOAD_OPTIONS = ()
SAVE_OPTIONS = ("max_shard_bytes",)


def save(
    path: str | Path,
    config: TransformerConfig,
    parameters: Mapping[str, np.ndarray],
    *,
    foreign: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    written: Written = lambda count: None,
    max_shard_bytes: int | None = None,
) -> None:
    """Writes a canonical file, or a new folder of indexed shards if `max_shard_bytes` is set.

    A failed write leaves nothing behind. foreign, dtype, written: see `checkpoints.save`. Raises
    ValueError listing every parameter that does not fit the config, has a different dtype, is not
    finite, or overflows `dtype`.
    """
    path = Path(path)
    arrays = tables.arrays(parameters)
    if problems := strict.problems(arrays, declaration.shapes(config), dtype):
        raise CheckpointError(path, problems)
    if path.is_dir() or (path.exists() and max_shard_bytes):
        raise ValueError(f"{path} {'already exists; shards need a new folder' if max_shard_bytes else 'is a folder; name a file'}")
    ordered, said = tables.Made(arrays.__getitem__, declaration.axes(config)), metadata(config, foreign)
    kind = dtype and strict.numpy_dtype(dtype)
    with replacing(path) as temporary:
        if max_shard_bytes is None:
            container.write(temporary, ordered, said, kind, written)
        else:
            temporary.mkdir()
            container.write_shards(temporary, ordered, said, max_shard_bytes, kind, written)


def load(path: str | Path) -> Checkpoint:
    """Loads a file, an index of shards, or the folder of either. Raises like `validate`."""
    return view(path).in_memory()


def view(path: str | Path) -> Checkpoint:
    """Like `load`, but reads parameters on access."""
    return validate(container.read(Path(path)), path)


def validate(source: Container, name: str | Path) -> Checkpoint:
    """Checks a container's tensors and metadata and returns them as a checkpoint.

    Raises ForeignError if another program wrote the model, otherwise ValueError listing every
    problem: invalid container, metadata, config or ties; missing, unexpected, misnamed, transposed
    or misshapen tensors; wrong dtypes; values that are not finite.
    """
    if not source.problems and not is_canonical(source):
        recognise.refuse_tensors(source.tensors, name)
    problems = list(source.problems)
    config = None
    if source.tensors or not problems:  # a container that could not be read has no tensors to check
        config, metadata_problems = _read_metadata(source.metadata)
        problems += metadata_problems
        problems += _tensor_problems(config, source.tensors) if config else strict.content_problems(source.tensors, {})
    if problems or config is None:
        raise CheckpointError(name, problems)
    ordered = {name: source.tensors[name] for name in declaration.axes(config)}
    return Checkpoint(config, ordered, _json(source.metadata, "foreign") or {})


def is_canonical(source: Container) -> bool:
    """Whether a container claims to be a canonical checkpoint, even if it is damaged."""
    return source.metadata.get("format") == FORMAT


def metadata(config: TransformerConfig, foreign: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns the metadata of a canonical file."""
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "config": json.dumps(config.to_dict()),
        "ties": json.dumps(declaration.ties(config)),
    } | ({"foreign": json.dumps(foreign)} if foreign else {})


def _read_metadata(fields: Mapping[str, str]) -> tuple[TransformerConfig | None, list[str]]:
    problems = []
    if fields.get("format") != FORMAT:
        found = fields.get("format")
        problems.append(f"the metadata's format must be {FORMAT!r}; got {found!r}. Convert other formats with `rosettaformer convert`")
    if (version := fields.get("format_version")) != VERSION:
        problems.append(f"the metadata's format_version must be {VERSION!r}; got {version!r}")
    if "foreign" in fields and not isinstance(_json(fields, "foreign"), dict):
        problems.append("the metadata's foreign must be a JSON object")
    values, ties = _json(fields, "config"), _json(fields, "ties")
    if not isinstance(values, dict):
        return None, [*problems, "the metadata has no config, or the config is not a JSON object"]
    try:
        config = TransformerConfig.from_dict(values)
    except ValueError as error:
        return None, [*problems, f"config: {error}"]
    if ties != declaration.ties(config):
        wanted, got = json.dumps(declaration.ties(config)), json.dumps(ties)[:500]
        problems.append(f"the metadata's ties contradict the config; expected {wanted}, got {got}")
    return config, problems


def _tensor_problems(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> list[str]:
    believed, problems = strict.contradictions(config, tensors)
    tied = declaration.ties(believed).items()
    problems += [f"the config ties {name} to {stored}; it must not be stored" for name, stored in tied if name in tensors]
    return problems + strict.problems(tensors, declaration.shapes(believed))


def _json(fields: Mapping[str, str], name: str) -> Any:
    """Parses a metadata field as JSON; None if it is not JSON."""
    try:
        return parse_json(fields.get(name, ""))
    except ValueError:
        return None
