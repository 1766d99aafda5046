"""Mutations of files, each a function of the content and a random number generator."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = (10**400, -1, 0, 10**9, 2**63, -(10**400), 1e308, -1.5)
VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    "x" * 100_000,
    [[]],
    "\ud800",
    "../../etc/passwd",
    "\x1b[31m\x00",
    float("nan"),
    float("inf"),
)


def mutate(path: Path, rng: random.Random, others: list[Path]) -> str:
    """Mutates one file at random and describes the change. others: files that may replace it."""
    content = path.read_bytes()
    kinds = [*BYTES, *PLACES] + [*STRUCTURE] * 2 * (_parts(content) is not None)
    name = rng.choice(kinds)
    if name in PLACES:
        path.unlink()
        PLACES[name](path, rng.choice(others))
    elif name in BYTES:
        path.write_bytes(BYTES[name](content, rng))
    else:
        head, text, tail = _parts(content)  # type: ignore[misc]
        path.write_bytes(_joined(head, STRUCTURE[name](text, rng), tail))
    return name


def _insert(content: bytes, part: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + part + content[place:]


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 3, 30))):
        changed[rng.randrange(min(len(changed), rng.choice((16, 400, len(changed)))))] ^= 1 << rng.randrange(8)
    return bytes(changed)


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda content, rng: b"",
    "cut": lambda content, rng: content[: rng.randrange(len(content) or 1)],
    "cut a little": lambda content, rng: content[: -rng.randrange(1, 9)],
    "beginning lost": lambda content, rng: content[rng.randrange(1, len(content) or 2) :],
    "bits": _flip,
    "byte": lambda content, rng: _insert(content, bytes([rng.randrange(256)]), rng),
    "no UTF-8": lambda content, rng: _insert(content, b"\xff\xfe\xc0", rng),
    "byte order mark": lambda content, rng: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, rng: content.decode("latin-1").encode("utf-16"),
    "NULs": lambda content, rng: _insert(content, b"\0" * rng.choice((1, 4096)), rng),
    "zeroed": lambda content, rng: b"\0" * len(content),
    "twice": lambda content, rng: content + content,
    "deep": lambda content, rng: b"[" * 100_000 + content,
    "long": lambda content, rng: _insert(content, bytes([rng.randrange(32, 127)]) * 2_000_000, rng),
    "noise": lambda content, rng: rng.randbytes(len(content)),
}
PLACES: dict[str, Callable[[Path, Path], object]] = {
    "folder": lambda path, other: path.mkdir(),
    "pipe": lambda path, other: os.mkfifo(path),
    "another file": lambda path, other: shutil.copyfile(other, path),
    "none": lambda path, other: None,
    "dangling": lambda path, other: path.symlink_to("nowhere"),
    "huge": lambda path, other: (path.touch(), os.truncate(path, 40 * 10**9)),
}


def _parts(content: bytes) -> tuple[bytes, Any, bytes] | None:
    """Returns the bytes before the JSON, the JSON, and the bytes after it: empty for JSON files, length and tensors for safetensors."""
    for head in (b"", content[:8]):
        size = int.from_bytes(head, "little") if head else len(content)
        try:
            return head, json.loads(content[len(head) : len(head) + size]), content[len(head) + size :]
        except ValueError:
            continue
    return None


def _joined(head: bytes, text: str, tail: bytes) -> bytes:
    raw = text.encode(errors="surrogatepass")
    return (struct.pack("<Q", len(raw)) if head else b"") + raw + tail


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns (container, key) of every nested value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [found for key in keys for found in ((value, key), *_places(value[key]))]


def _set(make: Callable[[Any, random.Random], Any], wanted: type | tuple[type, ...] = object) -> Callable[[Any, random.Random], str]:
    """Changes one nested value, of these types if there is one."""

    def change(value: Any, rng: random.Random) -> str:
        places = _places(value)
        chosen = [place for place in places if isinstance(place[0][place[1]], wanted)] or places
        if not chosen:
            return json.dumps(make(value, rng))
        holder, key = rng.choice(chosen)
        holder[key] = make(holder[key], rng)
        return json.dumps(value)

    return change


def _delete(value: Any, rng: random.Random) -> str:
    holder, key = rng.choice(_places(value) or [([0], 0)])
    del holder[key]
    return json.dumps(value)


def _double(value: Any, rng: random.Random) -> str:
    """Repeats a field with another value."""
    text = json.dumps(value)
    names = [key for holder, key in _places(value) if isinstance(holder, dict)]
    if not names:
        return text
    name = json.dumps(rng.choice(names)) + ":"
    at = text.find(name)
    return text[:at] + name + rng.choice(("1, ", "null, ", "[], ")) + text[at:]


STRUCTURE: dict[str, Callable[[Any, random.Random], str]] = {
    "number": _set(lambda old, rng: rng.choice(NUMBERS), (int, float)),
    "value": _set(lambda old, rng: rng.choice(VALUES)),
    "text": _set(lambda old, rng: old + rng.choice(("", "x", "\n")) if isinstance(old, str) else str(old), str),
    "nested": _set(lambda old, rng: [old]),
    "deleted": _delete,
    "named twice": _double,
    "new field": lambda value, rng: json.dumps(value | {"new": rng.choice(VALUES)} if isinstance(value, dict) else [value]),
    "nested deeply": lambda value, rng: '{"a":' * 50_000 + json.dumps(value) + "}" * 50_000,
    "very many": lambda value, rng: json.dumps(
        value | {f"k{n}": n for n in range(50_000)} if isinstance(value, dict) else [value] * 50_000
    ),
}
