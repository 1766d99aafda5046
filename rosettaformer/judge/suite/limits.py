"""Limits that the port of a whole model declares."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..case import DTYPES, LAST

# declaration -> its values, the default first
LIMITS: Mapping[str, tuple[Any, Any]] = {"positions": ("all", LAST), "rows": (0, 1), "masks": (True, False)}
DECLARED = (*LIMITS, "dtypes")
ALIKE = 0.8  # similarity of names


def limits_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the declarations that differ from the defaults.

    Raises ValueError for an invalid value, and for a misspelled declaration with a valid value.
    """
    for name, value in said.items():
        if name not in DECLARED and (meant := get_close_matches(name, DECLARED, 1, ALIKE)) and _fits(meant[0], value):
            raise ValueError(f"unknown declaration {name} (nearest: {meant[0]}); a port can declare {', '.join(DECLARED)}")
    found = {name: said[name] for name in LIMITS if name in said}
    for name, value in found.items():
        if not any(value is one or (type(value) is type(one) and value == one) for one in LIMITS[name]):
            raise ValueError(f"{name} must be {' or '.join(map(repr, LIMITS[name]))}; got {value!r}")
    return {name: value for name, value in found.items() if value != LIMITS[name][0]}


def _fits(name: str, value: Any) -> bool:
    """Whether the value is valid for the declaration, and unlikely for another variable."""
    if name == "dtypes":
        return isinstance(value, tuple | list) and bool(value) and all(isinstance(dtype, str) and dtype in DTYPES for dtype in value)
    return type(value) in (str, bool) and value in LIMITS[name]
