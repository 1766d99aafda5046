"""Reads the manifest of vectors, seals it by a digest of its contents, and compares it with its folder."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...reading import read_json
from ..cases.case_files import MANIFEST

SEAL = "sha256"  # the field that holds the digest of all other fields


def digest(data: bytes) -> str:
    """Returns the SHA-256 of the data."""
    return hashlib.sha256(data).hexdigest()


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest with the SHA-256 of everything else in it, as JSON without spaces and with sorted names."""
    content = {name: value for name, value in manifest.items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return content | {SEAL: digest(text.encode())}


def read(directory: Path) -> dict[str, Any]:
    """Returns the manifest. Raises ValueError if the file is not one."""
    try:
        manifest = read_json(directory / MANIFEST)
        complete = isinstance(manifest["suite"], int) and all(map(_is_row, manifest["cases"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} holds no vectors: its {MANIFEST} cannot be read ({error!r})") from None
    if not complete:
        raise ValueError(f"{directory} holds no vectors: its {MANIFEST} is another one")
    return manifest


def problems(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the manifest as a whole, and with its folder."""
    rows = manifest["cases"]
    if SEAL not in manifest:
        yield f"{MANIFEST} has no {SEAL}: export the vectors again"
    elif sealed(manifest) != manifest:
        yield f"{MANIFEST} is damaged: its {SEAL} is not that of what it says"
    if not rows:
        yield f"{MANIFEST} has no cases"
    for field in ("id", "file"):
        counts = Counter(row[field] for row in rows)
        yield from (f"{MANIFEST} has more than one row of the {field} {name}" for name, count in counts.items() if count > 1)
    known = {MANIFEST, *(row["file"] for row in rows)}
    yield from (f"{path.name} belongs to no case" for path in sorted(directory.iterdir()) if path.name not in known)


def _is_row(row: Any) -> bool:
    """Whether the row says everything about a case, and names a file in the same folder."""
    kinds = {str: ("id", "component", "dtype", "file", "sha256"), dict: ("config", "inputs", "expected"), int: ("release",)}
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), kind) for kind, names in kinds.items() for name in names)
        and all(isinstance(outputs, dict) for outputs in row["expected"].values())
        and Path(row["file"]).name == row["file"]
    )
