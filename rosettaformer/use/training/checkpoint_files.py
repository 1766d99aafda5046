"""Reads and writes the files of one checkpoint; each process writes its part, tensor by tensor.

One process writes `model.safetensors` and `optimizer.safetensors`; several write
`model-00001-of-00004.safetensors`, ... with an index. No process needs more than one whole tensor
at a time.
"""

import collections
import contextlib
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy import parameters as declaration

from ...common.meshes.together import Group
from ...files.checkpoints import CheckpointError, canonical, container, strict
from ...files.checkpoints.container import Put
from . import progress
from .progress import Progress

Named = Iterable[tuple[str, np.ndarray]]  # as Trainer.tensors returns it
PARAMETERS, MOMENTS = "parameters", ("first_moment", "second_moment")
_MODEL, _OPTIMIZER, _DIGEST = "model", "optimizer", ".sha256"
_KINDS = {_MODEL: (PARAMETERS,), _OPTIMIZER: MOMENTS}


class Stored(Mapping[str, np.ndarray]):
    """Tensors of files by name, each read into memory on access."""

    def __init__(self, views: Mapping[str, np.ndarray]) -> None:
        self._views = views

    def __getitem__(self, name: str) -> np.ndarray:
        array = np.array(self._views[name])
        container.release(self._views[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def deal(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Distributes names over at most `count` parts of similar total size, the largest first."""
    parts: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        least = filled.index(min(filled))
        parts[least].append(name)
        filled[least] += sizes[name]
    return [part for part in parts if part]


def write(folder: Path, config: TransformerConfig, tensors: Named, group: Group) -> None:
    """Writes this process's part of a checkpoint and the checksums of its files.

    Consumes every tensor, as the other processes do. Raises CheckpointError on a tensor that does
    not belong to the config, and OSError if the disk fails.
    """
    shapes, left = _shapes(config), iter(tensors)
    own = {folder / file: names for kind in _KINDS for file, names in [*_parts(shapes, group.size, kind)][group.rank : group.rank + 1]}
    try:
        with contextlib.ExitStack() as files:
            puts: dict[str, Put] | None = None
            for name, array in left:
                if puts is None:
                    puts = dict(_opened(files, own, config, array.dtype))
                if put := puts.pop(name, None):
                    if problems := strict.problems({name: array}, {name: shapes[name]}):
                        raise CheckpointError(folder, problems)
                    put(name, array)
                del array  # frees it before the next one is made
            if puts:
                raise CheckpointError(folder, [f"missing {name}" for name in puts])
        for path in own:
            path.with_name(path.name + _DIGEST).write_text(digest(path), encoding="utf-8")
            _sync(path)
    finally:
        exhaust(left)


def finish(folder: Path, config: TransformerConfig, done: Progress, group: Group) -> None:
    """Writes the indices of a sharded checkpoint, and its progress with all checksums.

    Raises ValueError if a part is missing in the folder.
    """
    wanted = {kind: [file for file, _ in _parts(_shapes(config), group.size, kind)] for kind in _KINDS}
    if missing := [file for files in wanted.values() for file in files if not (folder / file).is_file()]:
        raise ValueError(f"every process must write into the same folder; {folder} lacks {', '.join(missing)}")
    for kind, files in wanted.items():
        if len(files) > 1:
            found = {file: container.read(folder / file).tensors for file in files}
            size = sum(array.nbytes for tensors in found.values() for array in tensors.values())
            weight_map = {name: file for file, tensors in found.items() for name in tensors}
            said = canonical.metadata(config) if kind == _MODEL else {}
            container.write_index(folder / f"{kind}.safetensors.index.json", weight_map, size, said)
    written = {path.name.removesuffix(_DIGEST): path for path in sorted(folder.glob(f"*{_DIGEST}"))}
    digests = {name: path.read_text(encoding="utf-8") for name, path in written.items()}
    done.write(folder, digests | {path.name: digest(path) for path in sorted(folder.glob("*.index.json"))})
    for path in written.values():
        path.unlink()


def write_model(path: Path, config: TransformerConfig, parameters: Named) -> None:
    """Writes a new canonical file tensor by tensor. Raises like `write`."""
    wanted = declaration.shapes(config)
    with contextlib.ExitStack() as files:
        put: Put | None = None
        for name, array in parameters:
            if problems := strict.problems({name: array}, {name: wanted[name]}):
                raise CheckpointError(path, problems)
            if put is None:
                kinds = {name: (array.dtype, shape) for name, shape in wanted.items()}
                put = files.enter_context(container.open_places(path, kinds, canonical.metadata(config)))
            put(name, array)
            del array


def exhaust(tensors: Iterable[object]) -> None:
    """Consumes the remaining tensors, since the other processes wait until every process has."""
    collections.deque(tensors, maxlen=0)


def model(folder: Path) -> Path:
    """Returns the canonical file of a checkpoint, or the index of its shards."""
    return _whole_or_index(folder, _MODEL)


def view(folder: Path, parameters: Path | None = None) -> Stored:
    """Returns the state in a valid checkpoint. parameters: a file to use instead of the model's."""
    values, moments = (container.read(path).tensors for path in (parameters or model(folder), _whole_or_index(folder, _OPTIMIZER)))
    return Stored({f"{PARAMETERS}.{name}": value for name, value in values.items()} | moments)


def refuse(folder: Path, config: TransformerConfig) -> None:
    """Raises ValueError if a checkpoint is damaged, incomplete or of another config."""
    found = canonical.view(model(folder))
    if found.config != config:
        fields = [name for name, value in config.to_dict().items() if found.config.to_dict()[name] != value]
        raise ValueError(f"its config differs from the run's in {', '.join(fields)}")
    path = _whole_or_index(folder, _OPTIMIZER)
    optimizer = container.read(path)
    shapes = {f"{part}.{name}": value.shape for part in MOMENTS for name, value in found.parameters.items()}
    if problems := optimizer.problems or strict.problems(optimizer.tensors, shapes):
        raise CheckpointError(path, problems)
    digests = progress.read(folder)[1]
    names = {file.name for pattern in ("*.safetensors", "*.index.json") for file in folder.glob(pattern)}
    if others := [name for name in sorted(names | {*digests}) if name not in digests or digests[name] != digest(folder / name)]:
        raise ValueError(f"{', '.join(others)}: damaged, the SHA-256 differs from that in {progress.FILE}. Restore the checkpoint's folder")


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parts(shapes: Mapping[str, tuple[int, ...]], count: int, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the files of a kind, one per process with a part, and the names of their tensors."""
    dealt = deal({name: math.prod(shape) for name, shape in shapes.items() if name.partition(".")[0] in _KINDS[kind]}, count)
    for number, names in enumerate(dealt, start=1):
        yield f"{kind}-{number:05}-of-{len(dealt):05}.safetensors" if len(dealt) > 1 else f"{kind}.safetensors", names


def _opened(
    files: contextlib.ExitStack, own: Mapping[Path, list[str]], config: TransformerConfig, dtype: np.dtype
) -> Iterator[tuple[str, Put]]:
    """Opens the files; yields a function per tensor that writes it."""
    shapes = _shapes(config)
    for path, names in own.items():
        said = canonical.metadata(config) if path.name.startswith(_MODEL) else {}
        put = files.enter_context(container.open_places(path, {_stored(name): (dtype, shapes[name]) for name in names}, said))
        yield from ((name, lambda name, array, put=put: put(_stored(name), array)) for name in names)


def _shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a state's tensors."""
    return {f"{part}.{name}": shape for part in (PARAMETERS, *MOMENTS) for name, shape in declaration.shapes(config).items()}


def _stored(name: str) -> str:
    """Returns the name of a tensor in its file; a parameter has its canonical name."""
    return name.removeprefix(f"{PARAMETERS}.")


def _whole_or_index(folder: Path, kind: str) -> Path:
    whole = folder / f"{kind}.safetensors"
    index = whole.with_name(f"{whole.name}.index.json")
    return index if index.exists() and not whole.exists() else whole


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
