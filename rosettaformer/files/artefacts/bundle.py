"""Combines the files of an exported model: all their functions, by name."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import manifest
from .opening import open_artefact
from .signature import Artefact, Entry


class Bundle:
    """The functions of an exported model: those in its manifest, or else those of the file.

    manifest: None if there is none. Raises like `open_artefact` and `manifest.read`.
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
        """The fate of ids out of range, by input; empty without a manifest."""
        said = self.manifest.ids if self.manifest else {}
        kinds = {"source": "tokens", "target": "tokens", "segment_bs": "segments"}
        return {side: said if isinstance(said, str) else said.get(kind, "") for side, kind in kinds.items()}

    @property
    def files(self) -> list[Path]:
        """The files or folders of the functions, the whole model's first."""
        return list(dict.fromkeys([self._path, *(path for path, _ in self._places.values())]))

    def place(self, name: str) -> tuple[Path, str]:
        """Returns a function's file and its name there."""
        return self._places[name]

    def entry(self, name: str) -> Entry:
        """Returns a function's inputs and outputs as the manifest or else the file describes them.

        The manifest is more precise: some formats store neither sizes nor dtypes. Raises ValueError
        if the file lacks the function or has different inputs or outputs.
        """
        path, signature = self._places[name]
        if self.manifest is None:
            return self._artefact(path).entries[signature]
        found = self._artefact(path).entries.get(signature)
        said = manifest.entry_of(name, self.manifest.entries[name])
        if found is None or _names(found) != _names(said):
            got = "none" if found is None else ", ".join(map(str, (*found.inputs, *found.outputs)))
            described = manifest.beside(self._path)
            raise ValueError(f"{path} does not match {described}, which describes the function {signature}; got {got}. Export it again")
        return said

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a function on the state stored in the file."""
        path, signature = self._places[name]
        return self._artefact(path).run(signature, inputs)

    def resume(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a function on the state that its last call left."""
        path, signature = self._places[name]
        return self._artefact(path).resume(signature, inputs)

    def _artefact(self, path: Path) -> Artefact:
        if path not in self._opened:
            self._opened[path] = open_artefact(path, self._allow_code)
        return self._opened[path]


def _names(entry: Entry) -> tuple[set[str], set[str]]:
    return {tensor.name for tensor in entry.inputs}, {tensor.name for tensor in entry.outputs}
