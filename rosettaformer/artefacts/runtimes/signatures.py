"""The names of the functions of a file that calls them signatures."""

from collections.abc import Mapping
from typing import TypeVar

DEFAULTS = ("serving_default", "serve", "main")  # that stand for the whole model where none is called forward
T = TypeVar("T")


def named(signatures: Mapping[str, T]) -> dict[str, T]:
    """Returns what belongs to each signature by the name of its function, the whole model's first."""
    found = dict(signatures.items())
    default = "forward" if "forward" in found else next((name for name in DEFAULTS if name in found), "")
    return ({"forward": found.pop(default)} if default else {}) | found
