"""Reads untrusted text, with limits: UTF-8 files, JSON, TOML, lines, and FIELD=VALUE settings."""

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from reference_numpy import TransformerConfig
from reference_numpy.fields import Fields
from reference_numpy.suggestions import nearest

LARGEST = 1 << 24  # bytes of the largest file that is read as a whole
DIGITS = 400  # most digits of an integer; float64 has no room for more
LONGEST_LINE, ENDLESS = 100_000, 1 << 26  # bytes: longer than any sentence; longer than any line of text
_CONTROL = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\ufffd]")


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Returns a file's content. Raises ValueError if it is missing, not regular, or too large."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        content = file.read(most + 1) if path.stat().st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"{path} must be at most {most} bytes long; it is longer")
    return content


def read_text(path: Path, most: int = LARGEST) -> str:
    """Returns a file's text. Raises ValueError like `read_bytes`, and if it is not UTF-8."""
    content = read_bytes(path, most)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; got the byte 0x{content[error.start]:02x} at place {error.start + 1}") from None


def parse_json(text: str | bytes) -> Any:
    """Parses JSON. Raises ValueError on invalid or too deeply nested text, and repeated fields."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Parses a JSON file. Raises ValueError like `read_text` and `parse_json`, naming the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}") from None


def read_object(path: Path, optional: bool = False) -> dict[str, Any]:
    """Parses a JSON file that holds an object. optional: a missing file counts as empty.

    Raises ValueError like `read_json`, and if it holds another type.
    """
    value = {} if optional and not os.path.lexists(path) else read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object; got {type(value).__name__}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Parses a TOML file. Raises ValueError like `read_text`, and on invalid TOML."""
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
        raise ValueError(f"a field must appear only once; got {twice!r:.100} twice")
    return fields


def _integer(digits: str) -> int:
    if len(digits) > DIGITS + 2:
        raise ValueError(f"an integer must have at most {DIGITS} digits; got {len(digits)}")
    return int(digits)


def parse_settings(
    settings: Iterable[str], kind: type[Fields] | Mapping[str, Any] = TransformerConfig, what: str = ""
) -> dict[str, Any]:  # fmt: skip
    """Parses FIELD=VALUE settings. Values are numbers, true, false, none, JSON lists, or names.

    kind: the class with the fields, or their types; fields of type str keep their text. what: the
    word for a field in messages. Raises ValueError listing every invalid setting, unknown field and
    repeated field.
    """
    fields = kind if isinstance(kind, Mapping) else {field.name: field.type for field in dataclasses.fields(kind)}
    what = what or f"{kind.KIND if isinstance(kind, type) else 'data'} field"
    result: dict[str, Any] = {}
    problems = []
    for text in settings:
        field, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(f"a setting must be FIELD=VALUE; got {text!r}")
        elif field not in fields:
            problems.append(f"unknown {what} {field!r}{nearest(field, fields)}")
        elif field in result:
            problems.append(f"{field} is set twice")
        else:
            result[field] = value if fields[field] in (str, str | None) else _value(value)
    if problems:
        raise ValueError("; ".join(problems))
    return result


def _value(text: str) -> Any:
    word = {"true": "true", "false": "false", "none": "null", "null": "null"}.get(text.lower(), text)
    try:
        value = parse_json(word)
    except ValueError:
        return text
    return value if value is None or isinstance(value, (bool, int, float, list)) else text


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields lines with their ends, and only the start of a line too long for `decode`.

    Raises ValueError if a line never ends.
    """
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        passed = 0
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)
            if (passed := passed + len(line)) > ENDLESS:
                raise ValueError(f"{file.name} must be lines of text; got a line of more than {ENDLESS} bytes")


def read_texts(file: BinaryIO, size: int) -> Iterator[list[tuple[str, str]]]:
    """Yields `size` results of `decode` at a time, or 1 in a terminal. Raises like `read_lines`."""
    size = 1 if file.isatty() else size
    texts: list[tuple[str, str]] = []
    for raw in read_lines(file):
        texts.append(decode(raw))
        if len(texts) == size:
            yield texts
            texts = []
    if texts:
        yield texts


def decode(raw: bytes) -> tuple[str, str]:
    """Returns a line's text without line end and byte order mark, and its problem, or ""."""
    if len(raw) > LONGEST_LINE:
        return "", f"must be at most {LONGEST_LINE} bytes long; it is longer"
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        byte, place = raw[error.start], error.start + 1
        guess = " (UTF-16?)" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        return "", f"must be UTF-8; got the byte 0x{byte:02x} at place {place}{guess}"


def damage(text: str) -> str:
    """Returns why a text cannot be a line of a corpus, or ""."""
    if not text.strip():
        return "must not be empty"
    found = _CONTROL.search(text)
    return f"must be text; got the character U+{ord(found[0]):04X}" if found else ""
