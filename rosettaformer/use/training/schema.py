"""Checks the fields of JSON objects, and stores objects in files with a fingerprint."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_numpy.fields import Fields, is_integer, is_number
from reference_numpy.suggestions import LONGEST_NAME

from ...common.reading import read_json

LARGEST = Fields.LARGEST
Check = tuple[Callable[[Any], bool], str]  # condition of a value, and its description in messages
Table = Mapping[str, Check]
FINGERPRINT = "fingerprint"

BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
OBJECT: Check = (lambda value: isinstance(value, dict), "an object")


def integer(least: int = 0, most: int = LARGEST) -> Check:
    return lambda value: is_integer(value) and least <= value <= most, f"an integer from {least} to {most}"


def number() -> Check:
    return lambda value: is_number(value) and value >= 0, "a finite number of at least 0"


def text(longest: int = 1000) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= longest, f"a text of at most {longest} characters"


def choice(*values: Any) -> Check:
    return lambda value: type(value) in map(type, values) and value in values, f"one of {', '.join(map(str, values))}"


def optional(check: Check) -> Check:
    return lambda value: value is None or check[0](value), f"{check[1]}, or null"


def several(check: Check) -> Check:
    return lambda value: isinstance(value, (list, tuple)) and all(map(check[0], value)), f"a list of values, each {check[1]}"


def problems(fields: Any, table: Table, where: str = "") -> list[str]:
    """Returns missing and invalid fields, and the first unknown ones. where: prefix in messages."""
    if not isinstance(fields, dict):
        return [f"{where or 'it'} must be an object; got {fields!r:.{LONGEST_NAME}}"]
    prefix = f"{where}." if where else ""
    found = [f"{prefix}{name} is missing" for name in table if name not in fields]
    found += [f"{prefix}{name:.{LONGEST_NAME}} is unknown" for name in [name for name in fields if name not in table][:3]]
    for name, (good, wanted) in table.items():
        if name in fields and not good(fields[name]):
            found.append(f"{prefix}{name} must be {wanted}; got {fields[name]!r:.{LONGEST_NAME}}")
    return found


def refuse(problems: Sequence[str]) -> None:
    """Raises ValueError listing the problems, if there are any."""
    if problems:
        raise ValueError("\n  ".join(problems))


def dump(fields: Mapping[str, Any]) -> str:
    """Returns the JSON of a file, including the fingerprint of its fields."""
    plain = json.loads(json.dumps(fields, allow_nan=False))
    return json.dumps(plain | {FINGERPRINT: fingerprint(plain)}, indent=2) + "\n"


def load(path: Path, table: Table) -> dict[str, Any]:
    """Reads a file written by `dump`.

    Raises ValueError if it is another kind of file, if fields do not fit the table, and if a field
    has been changed.
    """
    fields = read_json(path)
    wrong = problems(fields, {**table, FINGERPRINT: text()})
    if not wrong and fields.pop(FINGERPRINT) != (found := fingerprint(fields)):
        wrong = [f"its fields have been changed: they now have the fingerprint {found}"]
    refuse(wrong)
    return fields


def fingerprint(fields: Mapping[str, Any]) -> str:
    """Returns the fingerprint of an object's fields in any order."""
    return digest(json.dumps(fields, sort_keys=True))


def digest(text: str) -> str:
    """Returns the fingerprint of a text, which may contain lone surrogates."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
