"""The folder of a run: what it may hold, and its JSON files, each bound by a fingerprint."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.reading import read_json
from . import schema

__all__ = ["check", "dump", "load"]

FILES = ("run.json", "tokens.json", "log.jsonl", "lock", "loss.png", "loss.svg", "best.safetensors", "average.safetensors")
FOLDERS = ("checkpoints", "checkpoints/step-*")
FINGERPRINT = "fingerprint"


def check(folder: Path) -> None:
    """Raises ValueError where something that a run reads, writes or removes in its folder is a link, or no file or folder as it should be.

    The folder itself may be a link.
    """
    folders = [path for pattern in FOLDERS for path in folder.glob(pattern)]
    files = [folder / name for name in FILES] + [*folder.glob("checkpoints/step-*/*")]
    problems = [*_other(folders, Path.is_dir, "a folder"), *_other(files, Path.is_file, "a file")]
    if problems:
        raise ValueError("a run follows no link out of its folder:\n  " + "\n  ".join(problems[:20]))


def _other(paths: Iterable[Path], is_one: Any, wanted: str) -> list[str]:
    return [f"{path} must be {wanted} of its own" for path in paths if path.is_symlink() or (path.exists() and not is_one(path))]


def dump(fields: Mapping[str, Any]) -> str:
    """The JSON of a file, with the fingerprint of its fields."""
    plain = json.loads(json.dumps(fields, allow_nan=False))
    return json.dumps(plain | {FINGERPRINT: _fingerprint(plain)}, indent=2) + "\n"


def load(path: Path, table: schema.Table) -> dict[str, Any]:
    """The fields of a file of `dump`.

    Raises ValueError where it is none, where the fields are not as the table says, and where one of them is not what was written.
    """
    fields = read_json(path)
    problems = schema.problems(fields, {**table, FINGERPRINT: schema.text()})
    if not problems and fields.pop(FINGERPRINT) != (found := _fingerprint(fields)):
        problems = [f"its fields have been changed: their fingerprint is {found}"]
    if problems:
        raise ValueError("\n  ".join(problems))
    return fields


def _fingerprint(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
