"""The JSON output of commands. `outputs.toml` declares its fields, and a version per command."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("outputs.toml")


@functools.cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """Returns command -> field -> its type and meaning; each command also has a `version`."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def versioned(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a command's output, preceded by its version."""
    return {"version": declared()[command]["version"], **fields}
