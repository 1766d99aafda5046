"""What the fields of a run's files and options must be: tables of checks, each with the words that its message says."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from reference_numpy.fields import Fields, is_integer, is_number
from reference_numpy.suggestions import LONGEST_NAME

__all__ = ["BOOLEAN", "LARGEST", "OBJECT", "Check", "Table", "choice", "integer", "number", "optional", "problems", "several", "text"]

LARGEST = Fields.LARGEST
Check = tuple[Callable[[Any], bool], str]  # what a value must satisfy, how the message says it
Table = Mapping[str, Check]

BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
OBJECT: Check = (lambda value: isinstance(value, dict), "an object")


def integer(least: int = 0, most: int = LARGEST) -> Check:
    return lambda value: is_integer(value) and least <= value <= most, f"an integer of {least} .. {most}"


def number() -> Check:
    return lambda value: is_number(value) and value >= 0, "a finite number of at least 0"


def text(longest: int = 1000) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= longest, f"a text of at most {longest} characters"


def choice(*values: Any) -> Check:
    return lambda value: type(value) in map(type, values) and value in values, f"one of {', '.join(map(str, values))}"


def optional(check: Check) -> Check:
    return lambda value: value is None or check[0](value), f"{check[1]}, or null"


def several(check: Check) -> Check:
    return lambda value: isinstance(value, (list, tuple)) and all(map(check[0], value)), f"a list, each {check[1]}"


def problems(fields: Any, table: Table, where: str = "") -> list[str]:
    """Every field that is missing or out of range, and the first unknown ones; where: the name of the object that has the fields."""
    if not isinstance(fields, dict):
        return [f"{where or 'it'} must be an object; got {fields!r:.{LONGEST_NAME}}"]
    prefix = f"{where}." if where else ""
    found = [f"{prefix}{name} is missing" for name in table if name not in fields]
    found += [f"{prefix}{name:.{LONGEST_NAME}} is unknown" for name in list(_unknown(fields, table))[:3]]
    for name, (good, wanted) in table.items():
        if name in fields and not good(fields[name]):
            found.append(f"{prefix}{name} must be {wanted}; got {fields[name]!r:.{LONGEST_NAME}}")
    return found


def _unknown(fields: Collection[str], table: Table) -> Collection[str]:
    return [name for name in fields if name not in table]
