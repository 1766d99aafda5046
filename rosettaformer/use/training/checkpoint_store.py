"""The checkpoints of a run, each a folder that appears as a whole.

`checkpoints/step-00000100/` holds a canonical checkpoint and both moments of the optimizer by
canonical name, each in one file or in one per process, and `progress.json` with the checksums of
all files. A folder is written under a temporary name, flushed to the disk, and renamed.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy import parameters as declaration
from reference_numpy.sharding import Group as Alone

from ...common.atomic import publish, replacing
from ...common.meshes.together import Elsewhere, Group, led, together
from ...files.checkpoints import Checkpoint, canonical
from ...files.checkpoints.container import release
from . import checkpoint_files, progress
from .checkpoint_files import PARAMETERS, Named
from .progress import Progress

_STEP = re.compile(r"step-\d{8,}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")

State = Mapping[str, np.ndarray]  # as Trainer.load_state takes it
Take = Callable[[State, Progress], None]
Newest = tuple[tuple[State, Progress] | None, list[str]]


class Store:
    """The last `keep` checkpoints of a run. group: the processes that write and read them together.

    best.safetensors and average.safetensors, in the run's folder, hold only a model.
    """

    def __init__(self, folder: Path, keep: int = 5, group: Group | None = None) -> None:
        self.folder, self.keep, self._group = folder / "checkpoints", keep, group or Alone()
        self.best, self.average = folder / "best.safetensors", folder / "average.safetensors"

    def paths(self) -> list[Path]:
        """Returns the folders of the checkpoints, oldest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted((path for path in found if _STEP.fullmatch(path.name)), key=steps_of)

    def models(self) -> list[Path]:
        """Returns the canonical files, or indices, of the checkpoints, oldest first."""
        return [checkpoint_files.model(path) for path in self.paths()]

    def save(self, config: TransformerConfig, tensors: Named, done: Progress) -> None:
        """Adds a checkpoint, then removes the oldest ones. Every process passes its tensors.

        Raises ValueError or OSError if any process does, see `together`; nothing has then changed.
        """
        target, temporary = self.folder / f"step-{done.steps:08}", self.folder / f".{done.steps:016x}.tmp"
        try:
            led(self._group, lambda: self._begin(target, temporary))
            together(self._group, lambda: checkpoint_files.write(temporary, config, tensors, self._group))
            led(self._group, lambda: self._finish(target, temporary, config, done))
        finally:
            if self._group.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)

    def save_best(self, config: TransformerConfig, tensors: Named) -> None:
        """Writes the best validated model. Every process passes its tensors; raises like `save`."""
        together(self._group, lambda: self._best(config, _parameters(tensors, len(declaration.shapes(config)))))

    def newest(self, config: TransformerConfig, take: Take = lambda state, progress: None) -> Newest:
        """Returns the newest valid checkpoint, or None, and the problems of newer ones.

        take: uses the checkpoint, and raises ValueError if it does not fit. Every process calls
        this and takes what it needs; the first one verifies the files. Raises ValueError if there
        are checkpoints but none is valid.
        """
        problems: list[str] = []
        for path in reversed(self.paths()):
            try:
                return self._taken(path, config, take), problems
            except (ValueError, OSError, Elsewhere) as error:
                problems.append(f"{path} cannot be read: {error}")
        if problems:
            raise ValueError("no checkpoint can be read:\n" + "\n".join(problems))
        return None, problems

    def save_average(self, last: int | None = None) -> int:
        """Writes the mean of the last checkpoints' models, and returns their number.

        The mean is computed in float64, one tensor at a time. The paper translates with it. Raises
        ValueError if there are none. Source: Vaswani et al. 2017, section 6.1.
        """
        paths = self.models()[-(last or 0) :]
        if not paths:
            raise ValueError("averaging needs at least one checkpoint; train until one is saved")
        found = [canonical.view(path) for path in paths]
        if others := [path for path, checkpoint in zip(paths, found, strict=True) if checkpoint.config != found[0].config]:
            raise ValueError(f"checkpoints to average must have the same config; that of {others[0]} differs from {paths[0]}")
        with replacing(self.average) as temporary:
            checkpoint_files.write_model(temporary, found[0].config, ((name, _mean(name, found)) for name in found[0].parameters))
        return len(paths)

    def load(self, config: TransformerConfig, name: str) -> Checkpoint:
        """Loads a model of the run: "last", "average" (of the last ones) or "best".

        Raises ValueError if the run has none yet, or if its config differs.
        """
        path = {"average": self.average, "best": self.best}.get(name) or next(reversed(self.models()), None)
        if path is None or not path.is_file():
            raise ValueError(f"the run in {self.folder.parent} has no checkpoint {name!r} yet")
        checkpoint = canonical.load(path)
        if checkpoint.config != config:
            raise ValueError(f"the config of {path} differs from the run's")
        return checkpoint

    def averaged(self) -> State:
        """Returns the state of the newest checkpoint with averaged parameters."""
        return checkpoint_files.view(self.paths()[-1], self.average)

    def clean(self) -> None:
        """Removes the unfinished files of a killed run."""
        for folder in (self.folder.parent, self.folder):
            for path in folder.glob(".*.tmp") if folder.is_dir() else ():
                if _TEMPORARY.fullmatch(path.name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _taken(self, path: Path, config: TransformerConfig, take: Take) -> tuple[State, Progress]:
        led(self._group, lambda: _refuse(path, config))
        found = together(self._group, lambda: (checkpoint_files.view(path), progress.read(path)[0]))
        together(self._group, lambda: take(*found))
        return found

    def _begin(self, target: Path, temporary: Path) -> None:
        self.folder.mkdir(exist_ok=True)
        if target.is_dir():  # an unreadable checkpoint, since a run never writes a step twice
            self._remove(target)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()

    def _finish(self, target: Path, temporary: Path, config: TransformerConfig, done: Progress) -> None:
        checkpoint_files.finish(temporary, config, done, self._group)
        publish(temporary, target)
        for path in self.paths()[: -self.keep]:
            self._remove(path)

    def _best(self, config: TransformerConfig, parameters: Named) -> None:
        left = iter(parameters)
        try:
            if self._group.rank == 0:
                with replacing(self.best) as temporary:
                    checkpoint_files.write_model(temporary, config, left)
        finally:
            checkpoint_files.exhaust(left)

    def _remove(self, path: Path) -> None:
        """Renames the folder before removing it: a checkpoint's name never means half a folder."""
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(OSError):
            path.rename(temporary)
            shutil.rmtree(temporary)


def _mean(name: str, checkpoints: Sequence[Checkpoint]) -> np.ndarray:
    first, *others = (checkpoint.parameters[name] for checkpoint in checkpoints)
    total = first.astype(np.float64)
    for value in others:
        total += value
    for value in (first, *others):
        release(value)
    return (total / len(checkpoints)).astype(first.dtype)


def _parameters(tensors: Named, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields `count` parameters by canonical name, without requesting any further tensor."""
    for name, array in tensors:
        part, _, rest = name.partition(".")
        if part == PARAMETERS:
            yield rest, array
            count -= 1
            if not count:
                return
        del array


def _refuse(path: Path, config: TransformerConfig) -> None:
    """Raises ValueError if a checkpoint is damaged, or of another config or step."""
    checkpoint_files.refuse(path, config)
    if (steps := progress.read(path)[0].steps) != steps_of(path):
        raise ValueError(f"{progress.FILE} must be for step {steps_of(path)}; got {steps}")


def steps_of(path: Path) -> int:
    """Returns the step in the name of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))
