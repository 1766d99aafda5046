"""Reads text that anyone may have written: regular files of bounded size, in UTF-8; JSON and TOML of bounded depth; lines of bounded
length, ended by a line feed; settings FIELD=VALUE.
"""

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

LARGEST = 1 << 24  # bytes of a file that is read as a whole
DIGITS = 400  # digits of an integer; float64 has no room for more
LONGEST_LINE, ENDLESS = 100_000, 1 << 26  # bytes of a line; no sentence is longer than the first, no text has lines like the second
_CONTROL = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\ufffd]")


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Returns the content of a file. Raises ValueError if it is no regular file or too large, and OSError if the disk fails."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        content = file.read(most + 1) if path.stat().st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"{path} must be at most {most} bytes long; it is longer")
    return content


def read_text(path: Path, most: int = LARGEST) -> str:
    """Returns the text of a file. Raises ValueError like `read_bytes`, and if it is not UTF-8."""
    content = read_bytes(path, most)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; got the byte 0x{content[error.start]:02x} at place {error.start + 1}") from None


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ValueError if it is not JSON, nested too deeply, or names a field of an object twice."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise ValueError("JSON must not be nested so deeply") from None


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file. Raises ValueError like `read_text` and `parse_json`, naming the file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}") from None


def read_object(path: Path, optional: bool = False) -> dict[str, Any]:
    """Returns the object of a JSON file. optional: a missing file counts as empty.

    Raises ValueError like `read_json`, and if it holds another kind of value.
    """
    value = {} if optional and not os.path.lexists(path) else read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object; got {type(value).__name__}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file. Raises ValueError like `read_text`, and if it is not TOML or too deep, naming the file."""
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


def parse_settings(
    settings: Iterable[str], kind: type[Fields] | Mapping[str, Any] = TransformerConfig, what: str = ""
) -> dict[str, Any]:  # fmt: skip
    """Returns the mapping that FIELD=VALUE texts declare; values are numbers, true, false, none, lists as in JSON, or names. kind: the
    class that has the fields, or their types; a text of a field whose type is text stays one. what: the word for a field in messages.

    Raises ValueError listing every text without a field, unknown field and field set twice.
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
    """Yields the lines, each with its end; of one that is too long only the beginning, which `decode` refuses.

    Raises ValueError if a line does not end at all.
    """
    while line := file.readline(LONGEST_LINE + 1):
        yield line
        passed = 0
        while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE + 1)
            if (passed := passed + len(line)) > ENDLESS:
                raise ValueError(f"{file.name} must be lines of text; got one of more than {ENDLESS} bytes")


def read_texts(file: BinaryIO, size: int) -> Iterator[list[tuple[str, str]]]:
    """Yields the lines' texts and problems, see `decode`, `size` at a time; one at a time in a terminal. Raises like `read_lines`."""
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
    """Returns the text of a line without its end and without a byte order mark; and its problem as a line, or an empty text."""
    if len(raw) > LONGEST_LINE:
        return "", f"must be at most {LONGEST_LINE} bytes long; it is longer"
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        byte, place = raw[error.start], error.start + 1
        guess = " (UTF-16?)" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        return "", f"must be UTF-8; got the byte 0x{byte:02x} at place {place}{guess}"


def damage(text: str) -> str:
    """Returns why a text cannot be a line of a corpus; empty if it can."""
    if not text.strip():
        return "must not be empty"
    found = _CONTROL.search(text)
    return f"must be text; got the character U+{ord(found[0]):04X}" if found else ""
