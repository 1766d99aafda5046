"""The JSON that commands write. `outputs.toml` declares its fields: their types and what they mean, and a version for each command."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("outputs.toml")


@functools.cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """Returns command -> field -> what it is, beside the command's `version`."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def versioned(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an object that a command writes, after the version of what it writes."""
    return {"version": declared()[command]["version"], **fields}
