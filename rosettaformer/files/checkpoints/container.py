"""Reads and writes safetensors files, single or sharded with a Hugging Face index.

The index, `*.safetensors.index.json`, is `{"metadata": {...}, "weight_map": {tensor: file}}`.
Its shards are in the same folder.
"""

import contextlib
import json
import math
import mmap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from ...common.reading import read_json
from . import recognise

INDEX = "model.safetensors.index.json"
NONE = "is empty, damaged or not a safetensors file"
LONGEST_NAME = 255  # characters in a file name
MOST_FILES, MOST_TENSORS = 10_000, 100_000  # files per index; tensors per file and per index
# in the order in which the safetensors package writes them, which keeps every tensor aligned
DTYPES: dict[str, Any] = {
    "U64": np.uint64, "I64": np.int64, "F64": np.float64, "C64": np.complex64, "F32": np.float32, "U32": np.uint32, "I32": np.int32,
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "U16": np.uint16, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_CODES = {np.dtype(kind): code for code, kind in DTYPES.items()}
Put = Callable[[str, np.ndarray], None]
Written = Callable[[int], None]  # receives the number of tensor bytes written since its last call


@dataclass
class Container:
    """The tensors and metadata of one or several files, and the problems found while reading them.

    tensors: read-only memory maps; names, shapes and dtypes can be inspected without reading data.
    """

    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read(path: Path) -> Container:
    """Reads a file, an index, or the folder of either. Raises ForeignError for other formats."""
    if path.is_dir():
        return read(_only_checkpoint(path))
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    source = read_index(path) if path.name.endswith(".index.json") else _read_file(path)
    if source.problems:
        recognise.refuse(path)
    return source


def parse(content: bytes) -> Container:
    """Reads a file's content from memory, where no other process can change it."""
    try:
        deserialize(content)  # validates the content as safe_open validates a file
        return _views(np.frombuffer(content, np.uint8))
    except (SafetensorError, ValueError) as error:
        return Container(problems=[f"{NONE}: {error!s:.300}"])


def write(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], dtype: Any = None, written: Written = lambda count: None
) -> None:
    """Writes one file, tensor by tensor, rounded to `dtype` if set. The bytes are reproducible.

    Needs memory for one tensor at a time. Each tensor of the mapping is read twice.
    """
    _write(path, tensors, list(tensors), metadata, dtype, written)


def _write(
    path: Path, tensors: Mapping[str, np.ndarray], names: list[str], metadata: Mapping[str, str], dtype: Any, written: Written
) -> None:
    found = {name: (np.dtype(dtype or array.dtype), array.shape) for name, array in ((name, tensors[name]) for name in names)}
    with open_places(path, found, metadata) as put:
        for name in _laid_down(found):
            array = tensors[name]
            put(name, array)
            release(array)
            written(array.nbytes)


@contextlib.contextmanager
def open_places(path: Path, kinds: Mapping[str, tuple[Any, tuple[int, ...]]], metadata: Mapping[str, str]) -> Iterator[Put]:
    """Yields a function that writes tensors of these kinds to a new file, in any order."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end, places = 0, {}
    for name in _laid_down(kinds):
        dtype, shape = kinds[name]
        places[name], end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        # a scalar is stored as one element
        entries[name] = {"dtype": _CODES[np.dtype(dtype)], "shape": list(shape or (1,)), "data_offsets": [places[name], end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)

        def put(name: str, array: np.ndarray) -> None:
            file.seek(8 + len(text) + places[name])
            # C order; little-endian, like every machine that the frameworks support
            with np.errstate(over="ignore"):
                file.write(np.ascontiguousarray(array, kinds[name][0]).reshape(-1).view(np.uint8).data)

        yield put


def _laid_down(kinds: Mapping[str, tuple[Any, tuple[int, ...]]]) -> list[str]:
    """Returns the tensor names in the order in which a file stores them."""
    order = {code: number for number, code in enumerate(DTYPES)}
    return sorted(kinds, key=lambda name: (order[_CODES[np.dtype(kinds[name][0])]], name))


def release(array: np.ndarray) -> None:
    """Releases the memory pages of a view of a file; the next access reads them again."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def write_shards(
    folder: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], max_shard_bytes: int, dtype: Any = None,
    written: Written = lambda count: None,
) -> None:  # fmt: skip
    """Writes shards of at most `max_shard_bytes` and their index into a folder, like `write`.

    A tensor larger than `max_shard_bytes` gets a shard to itself.
    """
    sizes = {name: array.size * np.dtype(dtype or array.dtype).itemsize for name, array in tensors.items()}
    shards = _split(sizes, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / name, tensors, shard, metadata, dtype, written)
        weight_map |= dict.fromkeys(shard, name)
    write_index(folder / INDEX, weight_map, sum(sizes.values()), metadata)


def write_index(path: Path, weight_map: Mapping[str, str], total_size: int, metadata: Mapping[str, str]) -> None:
    """Writes the index of a folder of shards. weight_map: the file of each tensor."""
    index = {"metadata": {"total_size": total_size, **metadata}, "weight_map": dict(weight_map)}
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _split(sizes: Mapping[str, int], max_shard_bytes: int) -> list[list[str]]:
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1; got {max_shard_bytes}")
    shards: list[list[str]] = []
    filled = max_shard_bytes
    for name, size in sizes.items():
        if not shards or filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _only_checkpoint(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.safetensors"))
    for index in (path for path in found if path.name.endswith(".index.json")):
        if (whole := index.with_name(index.name.removesuffix(".index.json"))).exists():
            raise ValueError(f"{folder} holds both {whole.name}, which transformers reads, and {index.name}; remove one of them")
    if not found:
        recognise.refuse_folder(folder)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "neither"
        raise ValueError(f"{folder} must hold exactly one *.safetensors.index.json or *.safetensors; got {names}. Name the file itself")
    return found[0]


def _read_file(path: Path) -> Container:
    try:
        with safe_open(path, framework="np"):  # validates the header, the file size and all offsets
            return _views(np.asarray(np.memmap(path, np.uint8, "r")))
    except (SafetensorError, ValueError) as error:
        return Container(problems=[f"{NONE}: {error!s:.300}"])


def _views(content: np.ndarray) -> Container:
    """Returns views of the tensors in valid bytes. Raises ValueError on dtypes that NumPy lacks."""
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start].tobytes())
    metadata = entries.pop("__metadata__", None) or {}
    if len(entries) > MOST_TENSORS:
        raise ValueError(f"at most {MOST_TENSORS} tensors can be read; the file holds {len(entries)}")
    tensors = {}
    for name, entry in sorted(entries.items()):
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{name} has dtype {entry['dtype']}, which NumPy lacks; convert it first")
        data = content[start:][slice(*entry["data_offsets"])]
        tensors[name] = data.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return Container(tensors, metadata)


def read_index(path: Path, read_shard: Callable[[Path], Container] | None = None) -> Container:
    """Reads the shards of an index. read_shard: replaces the reader of safetensors files."""
    try:
        index = read_json(path)
    except ValueError as error:
        return Container(problems=[f"is not a shard index: {error}"])
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        return Container(problems=["is not a shard index: it has no weight_map from tensors to files"])
    if len(weight_map) > MOST_TENSORS:
        return Container(problems=[f"maps too many tensors: at most {MOST_TENSORS}; got {len(weight_map)}"])
    mapped = defaultdict(set)
    for name, file in weight_map.items():
        mapped[file].add(name)
    if len(mapped) > MOST_FILES:
        return Container(problems=[f"names too many files: at most {MOST_FILES}; got {len(mapped)}"])
    metadata = index.get("metadata")
    texts = {name: text for name, text in metadata.items() if isinstance(text, str)} if isinstance(metadata, dict) else {}
    merged = Container(metadata=texts)
    for file, names in sorted(mapped.items()):
        merged.problems += _merge(merged, path.parent, file, names, read_shard or _read_file)
    return merged


def _merge(
    merged: Container, folder: Path, file: str, mapped: set[str], read_shard: Callable[[Path], Container]
) -> Iterator[str]:  # fmt: skip
    """Adds the tensors that weight_map assigns to a shard, and its metadata; yields problems."""
    if PureWindowsPath(file).name != file:  # rejects separators and drives of every system
        yield f"weight_map names {file!r:.100}, which is outside the checkpoint's folder"
        return
    if "\0" in file or len(file) > LONGEST_NAME or not (folder / file).is_file():
        yield f"weight_map names {file!r:.100} for {len(mapped)} tensors, but the file is missing; download it again"
        return
    shard = read_shard(folder / file)
    if shard.problems:
        recognise.refuse(folder / file)
        yield f"{file} {shard.problems[0]}"
        return
    for name, text in shard.metadata.items():
        if merged.metadata.setdefault(name, text) != text:
            yield f"{file} has different metadata than the other files in the field {name!r:.100}"
    yield from (f"weight_map puts {name:.100} into {file}, but it is not there" for name in sorted(mapped - shard.tensors.keys()))
    yield from (f"{file} holds {name:.100}, but weight_map does not list it there" for name in sorted(shard.tensors.keys() - mapped))
    merged.tensors |= {name: array for name, array in shard.tensors.items() if name in mapped}
