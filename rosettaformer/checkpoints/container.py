"""The safetensors container: 8 bytes of header length, a JSON header, the tensors' bytes (https://github.com/huggingface/safetensors).

Read and written here, not by the safetensors package: its reader stops at the first problem and its older versions know no bfloat16
in NumPy; its writer puts the metadata in random order, so that equal models give different files, and writes wrong bytes for arrays
that are not C-contiguous.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

__all__ = ["Container", "Entry", "read", "write"]

# dtype codes of the format -> NumPy names; other codes are listed, never read
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_CODES = {name: code for code, name in _DTYPES.items()}
_HEADER_LIMIT = 100_000_000  # the format's own
_AXES_LIMIT = 32  # no tensor of a model has more; NumPy refuses 65


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its dtype and shape, and how to read it; `load` is None where its bytes cannot be read."""

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray] | None


@dataclass
class Container:
    """What a file, or a sharded set of files, declares, with everything that is wrong with it as a container of tensors."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    config_beside: str | None = None  # the text of config.json in the folder of a sharded checkpoint

    def arrays(self) -> dict[str, np.ndarray]:
        """Every tensor that can be read."""
        return {name: entry.load() for name, entry in self.tensors.items() if entry.load is not None}


def read(path: Path) -> Container:
    """The container of one file. Nothing is allocated on the header's word: every length is held against the file's size first."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header, data_start = _header(file, size)
    except _BadHeader as error:
        return Container(problems=[str(error)])
    container = Container()
    container.problems += _metadata(header.pop("__metadata__", {}), container)
    container.problems += _tensors(header, path, data_start, size, container)
    return container


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes one file; equal arguments give equal bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in tensors.items():
        code = _CODES[str(array.dtype)]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in tensors.values():
            # bytes in C order whatever the strides; bfloat16 has no buffer of its own
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class _BadHeader(ValueError):
    """The file has no header, hence no tensors."""


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    if size < 8:
        raise _BadHeader("is empty" if size == 0 else f"is not a safetensors file, or truncated: it has only {size} bytes")
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise _BadHeader(f"is not a safetensors file, or truncated: its header would have {length} bytes, but {size - 8} follow")
    if length > _HEADER_LIMIT:
        raise _BadHeader(f"is not a safetensors file: its header would have {length} bytes; the limit is {_HEADER_LIMIT}")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _BadHeader(f"is not a safetensors file: its header is not JSON: {reason}") from None
    if not isinstance(header, dict):
        raise _BadHeader("is not a safetensors file: its header is not a JSON object")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return result


def _metadata(metadata: Any, container: Container) -> Iterator[str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        container.metadata = metadata
    else:
        yield "metadata must map names to text"


def _tensors(header: Mapping[str, Any], path: Path, data_start: int, size: int, container: Container) -> Iterator[str]:
    """Adds the entries to the container; yields what is wrong with them and with the bytes that they leave out or share."""
    ranges = []
    for name, declared in header.items():
        if not name.isprintable():
            yield f"the tensor name {name!a} must be printable"
            continue
        try:
            dtype, shape, start, stop = _declaration(declared)
        except ValueError as error:
            yield f"{name} {error}"
            continue
        complete = data_start + stop <= size
        offset = data_start + start
        load = functools.partial(_load, path, dtype, shape, offset) if complete and dtype in _CODES else None
        container.tensors[name] = Entry(dtype, shape, load)
        ranges.append((start, stop, name))
    reached = 0
    for start, stop, name in sorted(ranges):
        if start != reached:
            yield f"{name} must begin at byte {reached} of the data, where its predecessor ends; got {start}"
        reached = max(reached, stop)
    if data_start + reached > size:
        cut = [name for start, stop, name in sorted(ranges) if data_start + stop > size]
        yield f"is truncated at byte {size} of {data_start + reached}: {len(cut)} tensors are not whole, the first {cut[0]}"
    if data_start + reached < size and len(ranges) == len(header):
        yield f"{size - data_start - reached} bytes follow the last tensor"


def _declaration(declared: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(declared, dict) or declared.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("must declare dtype, shape and data_offsets")
    code, shape, offsets = declared["dtype"], declared["shape"], declared["data_offsets"]
    if not isinstance(code, str):
        raise ValueError(f"must name its dtype; got {code!r}")
    if not _sizes(shape) or len(shape) > _AXES_LIMIT:
        raise ValueError(f"must have a shape of at most {_AXES_LIMIT} sizes; got {str(shape)[:80]}")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"must have a first and a last byte; got {str(offsets)[:80]}")
    dtype = _DTYPES.get(code, code)
    if dtype in _CODES and math.prod(shape) * _numpy_dtype(dtype).itemsize != offsets[1] - offsets[0]:
        raise ValueError(f"of {dtype} and shape {tuple(shape)} does not fill its {offsets[1] - offsets[0]} bytes")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _load(path: Path, dtype: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    return np.fromfile(path, _numpy_dtype(dtype), math.prod(shape), offset=offset).reshape(shape)


def _numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))
