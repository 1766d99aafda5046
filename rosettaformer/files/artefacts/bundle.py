"""An artefact with everything that lies beside it: the functions of all its files, by name."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import manifest
from .opening import open_artefact
from .signature import Artefact, Entry


class Bundle:
    """The functions of an artefact: those of its manifest, if there is one, otherwise those of the file.

    manifest: what it says of itself; None if nothing. Raises ValueError and `Absent` like `open_artefact` and `manifest.read`.
    """

    def __init__(self, path: Path, allow_code: bool = False) -> None:
        self.manifest = manifest.read(path)
        self._path, self._allow_code = path, allow_code
        self._opened: dict[Path, Artefact] = {}
        own = self._artefact(path)
        self.versions = own.versions
        said = self.manifest.entries if self.manifest else {}
        self._places = {name: (path.with_name(entry["file"]), str(entry["signature"])) for name, entry in said.items()}
        self._places = self._places or {name: (path, name) for name in own.entries}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions."""
        return tuple(self._places)

    @property
    def ids(self) -> dict[str, str]:
        """What the manifest says becomes of an id out of range, of each side and of segments; empty if there is none."""
        said = self.manifest.ids if self.manifest else {}
        kinds = {"source": "tokens", "target": "tokens", "segment_bs": "segments"}
        return {side: said if isinstance(said, str) else said.get(kind, "") for side, kind in kinds.items()}

    @property
    def files(self) -> list[Path]:
        """The files or folders of the functions, that of the whole model first."""
        return list(dict.fromkeys([self._path, *(path for path, _ in self._places.values())]))

    def place(self, name: str) -> tuple[Path, str]:
        """Returns the file of a function, and what it is called there."""
        return self._places[name]

    def entry(self, name: str) -> Entry:
        """Returns what a function takes and gives: as the manifest says, since some formats keep neither sizes nor dtypes; otherwise as its
        file says. Raises ValueError if the file lacks the function, or has another one.
        """
        path, signature = self._places[name]
        if self.manifest is None:
            return self._artefact(path).entries[signature]
        found = self._artefact(path).entries.get(signature)
        said = manifest.entry_of(name, self.manifest.entries[name])
        if found is None or _names(found) != _names(said):
            got = "none" if found is None else ", ".join(map(str, (*found.inputs, *found.outputs)))
            raise ValueError(f"{path} must have the function {signature} that {manifest.beside(self._path)} describes; got {got}")
        return said

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a function; what it keeps is as it was in the file."""
        path, signature = self._places[name]
        return self._artefact(path).run(signature, inputs)

    def resume(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a function; what it keeps is as its last call left it."""
        path, signature = self._places[name]
        return self._artefact(path).resume(signature, inputs)

    def _artefact(self, path: Path) -> Artefact:
        if path not in self._opened:
            self._opened[path] = open_artefact(path, self._allow_code)
        return self._opened[path]


def _names(entry: Entry) -> tuple[set[str], set[str]]:
    return {tensor.name for tensor in entry.inputs}, {tensor.name for tensor in entry.outputs}
