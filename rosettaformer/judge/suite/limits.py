"""What a port declares not to answer."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..case import DTYPES, LAST

# what is declared -> its values, the default first
LIMITS: Mapping[str, tuple[Any, Any]] = {"positions": ("all", LAST), "rows": (0, 1), "masks": (True, False)}
DECLARED = (*LIMITS, "dtypes")
ALIKE = 0.8  # a share of equal letters


def limits_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is declared beyond the defaults. Raises ValueError on another value than the two that there are, and on a name that is
    nearly that of a declaration, with a value that it may have.
    """
    for name, value in said.items():
        if name not in DECLARED and (meant := get_close_matches(name, DECLARED, 1, ALIKE)) and _fits(meant[0], value):
            raise ValueError(f"a port declares {', '.join(DECLARED)}; got {name} (nearest: {meant[0]})")
    found = {name: said[name] for name in LIMITS if name in said}
    for name, value in found.items():
        if not any(value is one or (type(value) is type(one) and value == one) for one in LIMITS[name]):
            raise ValueError(f"{name} must be {' or '.join(map(repr, LIMITS[name]))}; got {value!r}")
    return {name: value for name, value in found.items() if value != LIMITS[name][0]}


def _fits(name: str, value: Any) -> bool:
    """Whether what is declared may have the value, and a variable of another meaning hardly would."""
    if name == "dtypes":
        return isinstance(value, tuple | list) and bool(value) and all(isinstance(dtype, str) and dtype in DTYPES for dtype in value)
    return type(value) in (str, bool) and value in LIMITS[name]
