"""Messages between processes as plain data: a JSON header, then the bytes of arrays.

Reading a message constructs nothing else. A message holds None, bools, 64-bit integers, floats,
strings, lists, tuples, mappings with scalar keys, and arrays of `DTYPES`:

    MAGIC, u32 header length | {"value": tree, "arrays": [[dtype, shape], ...]} | arrays in C order

In the tree, a scalar is itself. Everything else is a pair: ["list", items], ["tuple", items],
["map", [[key, value], ...]] or ["array", index].
"""

import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import ml_dtypes
import numpy as np

from .text import plain

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "bfloat16", "float32", "float64")
}  # fmt: skip
MAGIC = b"rsf1"
HEADER = struct.Struct("<4sI")
MOST_HEADER = 16 << 20  # bytes
MOST_DEPTH = 32
MOST_NODES = 1_000_000
MOST_AXES = 32
ANSWER, TIMES = 1 << 30, 4  # limits of a reply: at least this many bytes, and this multiple of the question's

Read = Callable[[int], bytes | bytearray]


class Malformed(ValueError):
    """Raised if data cannot be sent, or received data is not a message; the text says why."""


def answer_limit(sent: int) -> int:
    """Returns the most array bytes allowed in a reply. sent: those of the largest question."""
    return ANSWER + TIMES * sent


def pack(message: Any, most: int | None = None) -> tuple[list[Any], int]:
    """Returns the parts of a message in order, and the size of its arrays in bytes.

    Instances of subclasses are converted to the types above (a str Enum to str). Raises Malformed
    on any other type, and if the arrays have more than `most` bytes.
    """
    arrays: list[np.ndarray] = []
    tree = _tree(message, arrays, itertools.count(1))
    size = sum(array.nbytes for array in arrays)
    _check_size(size, most)
    header = json.dumps({"value": tree, "arrays": [[array.dtype.name, array.shape] for array in arrays]}).encode("ascii")
    if len(header) > MOST_HEADER:
        raise Malformed(f"the values other than arrays must take at most {MOST_HEADER} bytes; they take {len(header)}")
    bodies = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays)
    return [HEADER.pack(MAGIC, len(header)) + header, *(body for body in bodies if body.size)], size


def receive(read: Read, most: int | None = None, text: Callable[[str], str] = str) -> tuple[Any, int]:
    """Returns a message and the size of its arrays in bytes.

    read: returns exactly n bytes, or raises. text: maps every string. Raises Malformed if the data
    is not a message, and, before reading arrays, if they have more than `most` bytes.
    """
    magic, length = HEADER.unpack(read(HEADER.size))
    if magic != MAGIC or length > MOST_HEADER:
        raise Malformed("it does not start like a message")
    try:
        header = json.loads(bytes(read(length)))
        specs = [_spec(*spec) for spec in header["arrays"]]
        size = sum(count for *_, count in specs)
        _check_size(size, most)
        arrays = [np.frombuffer(read(count) if count else bytearray(), dtype).reshape(shape) for dtype, shape, count in specs]
        return _value(header["value"], arrays, text), size
    except Malformed:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise Malformed("its header is invalid") from None


def _check_size(size: int, most: int | None) -> None:
    """Raises Malformed if arrays of this size are too large to send."""
    if most is not None and size > most:
        raise Malformed(f"its arrays must have at most {most} bytes; they have {size}")


def is_array(value: Any) -> bool:
    """Whether the value really is an array of `DTYPES`."""
    return issubclass(type(value), np.ndarray) and DTYPES.get(base(value).dtype.name) == base(value).dtype


def base(array: np.ndarray) -> np.ndarray:
    """Returns the array as a plain ndarray that shares its memory."""
    return np.asarray(array)


def _tree(value: Any, arrays: list[np.ndarray], nodes: Iterator[int], depth: int = 0) -> Any:
    """Converts a value to a tree, and appends its arrays to `arrays`. nodes: counts nodes."""
    if depth > MOST_DEPTH or next(nodes) > MOST_NODES:
        raise Malformed(f"values must be nested at most {MOST_DEPTH} deep, and be at most {MOST_NODES}; there are more")
    kind = type(value)
    if is_array(value):
        arrays.append(base(value))
        return ["array", len(arrays) - 1]
    if issubclass(kind, list | tuple):
        return ["tuple" if issubclass(kind, tuple) else "list", [_tree(item, arrays, nodes, depth + 1) for item in value]]
    if issubclass(kind, Mapping):
        return ["map", [[_scalar(key), _tree(item, arrays, nodes, depth + 1)] for key, item in value.items()]]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """Converts a value to a JSON scalar. Raises Malformed on other types."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, np.generic):
        value = np.generic.item(value)
        kind = type(value)
    if issubclass(kind, str):
        return plain(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if kind is bool or (issubclass(kind, int) and -(1 << 63) <= int.__int__(value) < 1 << 64):
        return value if kind is bool else int.__int__(value)
    raise Malformed(f"only 64-bit numbers, text, None, lists, mappings and arrays of numbers can be sent; got {named(value)}")


def named(value: Any) -> str:
    """Describes a value by its class, or an array by its dtype."""
    kind = type(value)
    return f"an array of {base(value).dtype}" if issubclass(kind, np.ndarray) else plain(kind.__name__)


def _spec(name: str, shape: Iterable[int]) -> tuple[np.dtype, tuple[int, ...], int]:
    """Returns an array's dtype, shape and size in bytes."""
    shape = tuple(shape)
    if len(shape) > MOST_AXES or any(type(size) is not int or not 0 <= size < 1 << 48 for size in shape):
        raise Malformed("it has an array with an invalid shape")
    return DTYPES[name], shape, DTYPES[name].itemsize * math.prod(shape)


def _value(tree: Any, arrays: Sequence[np.ndarray], text: Callable[[str], str]) -> Any:
    """Converts a JSON tree to a value."""
    if type(tree) is str:
        return text(tree)
    if type(tree) in (bool, float, NoneType) or (type(tree) is int and -(1 << 63) <= tree < 1 << 64):
        return tree
    kind, items = tree if type(tree) is list else ("", ())
    if kind == "array" and type(items) is int and 0 <= items < len(arrays):
        return arrays[items]
    if kind == "map":
        return {_value(key, (), text): _value(item, arrays, text) for key, item in items}
    if kind in ("list", "tuple"):
        values = [_value(item, arrays, text) for item in items]
        return values if kind == "list" else tuple(values)
    raise Malformed("it has a value of unknown type")
