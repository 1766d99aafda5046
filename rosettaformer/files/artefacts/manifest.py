"""The manifest of an export, FILE.json next to FILE: functions, config and checksums."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reference_numpy import TransformerConfig

from ...common import atomic
from ...common.reading import read_object
from .signature import Entry, Tensor

CHUNK = 1 << 20
OURS = "rosettaformer"  # key of the version that wrote the manifest


@dataclass(frozen=True)
class Manifest:
    """The description of an exported model.

    ids: what happens to ids out of range (refused, nan, clamped, or unsaid), or per input.
    entries: the file, signature and tensors of each function.
    """

    format: str
    dtype: str
    ids: str | Mapping[str, str]
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, str]  # name -> sha256:...
    entries: Mapping[str, Mapping[str, Any]]


def beside(path: Path) -> Path:
    """Returns the path of an exported model's manifest."""
    return path.with_name(f"{path.name}.json")


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, or of a folder's files and their names."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        if path.is_dir():
            found.update(f"{file.relative_to(path).as_posix()}\0".encode())
        with file.open("rb") as content:
            while part := content.read(CHUNK):
                found.update(part)
    return f"sha256:{found.hexdigest()}"


def described(entry: Entry, file: str, signature: str = "") -> dict[str, Any]:
    """Returns an entry in the manifest's format."""
    tensors = {
        side: {tensor.name: {"dtype": tensor.dtype, "shape": list(tensor.shape)} for tensor in given}
        for side, given in (("inputs", entry.inputs), ("outputs", entry.outputs))
    }
    return {"file": file, "signature": signature or entry.name, **tensors}


def entry_of(name: str, said: Mapping[str, Any]) -> Entry:
    """Parses an entry of a manifest."""
    inputs, outputs = (
        tuple(Tensor(own, tensor["dtype"], tuple(tensor["shape"])) for own, tensor in said[side].items()) for side in ("inputs", "outputs")
    )
    return Entry(name, inputs, outputs)


def write(path: Path, manifest: Manifest) -> None:
    """Writes the manifest of the exported model at `path`."""
    atomic.write_text(beside(path), json.dumps({OURS: version(OURS)} | asdict(manifest), indent=1) + "\n")


def read(path: Path) -> Manifest | None:
    """Reads the manifest of an exported model; None if there is none.

    Raises ValueError if it is damaged or does not match the files.
    """
    file = beside(path)
    if not file.is_file():
        return None
    said = read_object(file)
    if said.pop(OURS, None) is None:
        return None
    try:
        found = Manifest(**said)
        _check(found, path.name)
        TransformerConfig.from_dict(dict(found.config))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{file} is not a valid manifest of rosettaformer export; {type(error).__name__}: {error}. Export the model again"
        ) from None
    for name, wanted in found.files.items():
        if not (other := path.with_name(name)).exists():
            raise ValueError(f"{file} lists {name}, which is missing; copy it next to the manifest, or export again")
        if (got := digest(other)) != wanted:
            raise ValueError(f"{other} does not match {file}: its SHA-256 is {got} instead of {wanted}. Copy both again, or export again")
    return found


def _check(found: Manifest, name: str) -> None:
    """Raises ValueError, or any other error, unless every field has its type."""
    ids = {"": found.ids} if isinstance(found.ids, str) else found.ids
    texts = [found.format, found.dtype, *ids.values(), *found.versions.values(), *found.files.values()]
    files = {name}
    for own, said in found.entries.items():
        entry = entry_of(own, said)
        texts += [said["signature"], *(tensor.dtype for tensor in (*entry.inputs, *entry.outputs))]
        files.add(said["file"])
        if not all(isinstance(size, int | str) for tensor in (*entry.inputs, *entry.outputs) for size in tensor.shape):
            raise ValueError(f"the sizes of {own} must be numbers and names; got {said}")
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ValueError(f"expected a string; got {wrong[0]!r}")
    if lost := files - {*found.files}:
        raise ValueError(f"files must have a checksum of each file; missing: {', '.join(sorted(lost))}")
    if wrong := [own for own in found.files if Path(own).name != own or own in ("", "..") or "\0" in own]:
        raise ValueError(f"its files must be in the manifest's folder; got {wrong[0]!r}")
