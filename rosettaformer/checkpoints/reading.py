"""Reading text that anyone may have written: regular files of a bounded size, in UTF-8; JSON and TOML of a bounded depth."""

import json
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["parse_json", "read_bytes", "read_json", "read_text", "read_toml"]

LARGEST = 1 << 24  # bytes of a file that is read whole
DIGITS = 400  # of an integer; float64 has no room for more


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """What a file holds. Raises ValueError where it is no regular file or larger, and OSError where the disk fails."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        content = file.read(most + 1) if path.stat().st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"{path} must be at most {most} bytes long; it is longer")
    return content


def read_text(path: Path, most: int = LARGEST) -> str:
    """The text of a file. Raises ValueError as `read_bytes`, and where it is not UTF-8."""
    content = read_bytes(path, most)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; got the byte 0x{content[error.start]:02x} at place {error.start + 1}") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, nested too deeply, or names a field of an object twice."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise ValueError("JSON must not be nested so deeply") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file. Raises ValueError as `read_text` and `parse_json`, naming the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ValueError as `read_text`, and where it is none or nested too deeply, naming the file."""
    text = read_text(path, LARGEST >> 4)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"a field must be named once; got {twice!r:.100} twice")
    return fields


def _integer(digits: str) -> int:
    if len(digits) > DIGITS + 2:
        raise ValueError(f"an integer must have at most {DIGITS} digits; got {len(digits)}")
    return int(digits)
