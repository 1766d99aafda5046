"""Checkpoints of several files: Hugging Face's layout, an index that maps every tensor to its file.

`{"metadata": {...}, "weight_map": {tensor: file}}` in `*.safetensors.index.json`, the files beside it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from . import container
from .container import Container

__all__ = ["is_checkpoint_folder", "read", "write"]

INDEX = "model.safetensors.index.json"


def read(path: Path) -> Container:
    """The container of a file, of an index, or of the folder that holds one of the two."""
    if path.is_dir():
        return _read_folder(path)
    return _read_index(path) if path.name.endswith(".index.json") else container.read(path)


def write(folder: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], max_shard_bytes: int) -> None:
    """Writes shards of at most that many bytes of tensors, a larger tensor alone, and their index, into a new folder."""
    folder.mkdir()
    shards = _split(tensors, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        container.write(folder / name, {tensor: tensors[tensor] for tensor in shard}, metadata)
        weight_map |= dict.fromkeys(shard, name)
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total, **metadata}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def is_checkpoint_folder(path: Path) -> bool:
    """True for a folder in which there is nothing but shards, index and config, so that nothing else is lost with it."""
    return path.is_dir() and all(
        child.name.endswith((".safetensors", ".safetensors.index.json")) or child.name == "config.json" for child in path.iterdir()
    )


def _split(tensors: Mapping[str, np.ndarray], max_shard_bytes: int) -> list[list[str]]:
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1; got {max_shard_bytes}")
    shards: list[list[str]] = []
    filled = max_shard_bytes
    for name, array in tensors.items():
        if not shards or filled + array.nbytes > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += array.nbytes
    return shards


def _read_folder(folder: Path) -> Container:
    indices, files = sorted(folder.glob("*.safetensors.index.json")), sorted(folder.glob("*.safetensors"))
    if len(indices) == 1:
        return _read_index(indices[0])
    if indices or len(files) != 1:
        found = ", ".join(path.name for path in indices or files) or "neither"
        raise ValueError(f"the folder {folder} must hold one *.safetensors.index.json, or one *.safetensors; got {found}")
    merged = container.read(files[0])
    merged.config_beside = _config_beside(folder)
    return merged


def _read_index(path: Path) -> Container:
    merged = Container(config_beside=_config_beside(path.parent))
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return Container(problems=["is not a JSON index of shards"])
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        return Container(problems=["is not an index of shards: weight_map must map tensors to files"])
    metadata = index.get("metadata", {})
    merged.problems += _merge_metadata(merged, path.name, metadata if isinstance(metadata, dict) else {})
    for file in sorted(set(weight_map.values())):
        mapped = {name for name, its_file in weight_map.items() if its_file == file}
        merged.problems += _merge_shard(merged, path.parent, file, mapped)
    return merged


def _merge_shard(merged: Container, folder: Path, file: str, mapped: set[str]) -> Iterator[str]:
    if _escapes(file):
        yield f"weight_map names {file!r}, which leaves the checkpoint's folder"
        return
    if not (folder / file).is_file():
        yield f"weight_map names {file!r}, which does not exist (for {len(mapped)} tensors)"
        return
    shard = container.read(folder / file)
    yield from (f"{file}: {problem}" for problem in shard.problems)
    yield from _merge_metadata(merged, file, shard.metadata)
    if not shard.tensors and shard.problems:
        return  # a file without a header holds no tensors to miss
    yield from (f"weight_map puts {name} into {file}, which does not hold it" for name in sorted(mapped - shard.tensors.keys()))
    yield from (f"{file} holds {name}, which weight_map does not put there" for name in sorted(shard.tensors.keys() - mapped))
    merged.tensors |= {name: entry for name, entry in shard.tensors.items() if name in mapped}


def _escapes(file: str) -> bool:
    """True for a name outside of the folder, on any system. Links are followed: Hugging Face's cache is made of them."""
    return PureWindowsPath(file).anchor != "" or PurePosixPath(file).is_absolute() or ".." in PureWindowsPath(file).parts


def _merge_metadata(merged: Container, file: str, metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, value in metadata.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if _meaning(merged.metadata.setdefault(name, text)) != _meaning(text):
            yield f"{file} contradicts the other files in its metadata {name!r}"


def _meaning(text: str) -> Any:
    """Metadata may be JSON, in which spaces and order mean nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _config_beside(folder: Path) -> str | None:
    path = folder / "config.json"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
