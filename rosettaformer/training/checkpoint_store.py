"""The checkpoints of a run: each a folder that appears whole or not at all.

`checkpoints/step-00000100/` holds `model.safetensors`, a canonical checkpoint; `optimizer.safetensors`, both moments by canonical name; and
`progress.json`, with the digests of both. A folder is written under another name, flushed to the disk and renamed; a folder of this name is
therefore complete.
"""

import contextlib
import hashlib
import math
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig

from ..atomic import replacing
from ..checkpoints import Checkpoint, CheckpointError, canonical, container, strict
from . import schema
from .backends import parameters_of
from .corpus import Position

_STEP = re.compile(r"step-\d{8,}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_MODEL, _OPTIMIZER, _PROGRESS = "model.safetensors", "optimizer.safetensors", "progress.json"
_MOMENTS = ("first_moment", "second_moment")
_DIGESTS = (lambda value: isinstance(value, dict) and {*value} == {_MODEL, _OPTIMIZER}, f"an object of {_MODEL} and {_OPTIMIZER}")
_FIELDS: schema.Table = {
    "seed": schema.integer(), "steps": schema.integer(1), "position": schema.OBJECT, "best": schema.optional(schema.number()),
    "stale": schema.integer(), "seconds": schema.number(), "sha256": _DIGESTS,
}  # fmt: skip
_POSITION = {"epoch": schema.integer(), "batch": schema.integer()}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """steps: completed steps; with the run's seed they are the whole random state. position: of the next batch.

    best: the lowest validation loss so far; stale: validations since then. seconds: training time so far, over all calls.
    """

    seed: int
    steps: int = 0
    position: Position = field(default_factory=Position)
    best: float | None = None
    stale: int = 0
    seconds: float = 0.0

    def validated(self, loss: float) -> "Progress":
        """Returns the progress after a validation with that loss."""
        better = loss < (math.inf if self.best is None else self.best)
        return replace(self, best=loss if better else self.best, stale=0 if better else self.stale + 1)


State = dict[str, np.ndarray]  # as Trainer.state returns it
Take = Callable[[State, Progress], None]
Newest = tuple[tuple[State, Progress] | None, list[str]]


class Store:
    """The checkpoints of the run in a folder, the last `keep` of them.

    best.safetensors and average.safetensors, beside them, hold only a model.
    """

    def __init__(self, folder: Path, keep: int = 5) -> None:
        self.folder, self.keep = folder / "checkpoints", keep
        self.best, self.average = folder / "best.safetensors", folder / "average.safetensors"

    def paths(self) -> list[Path]:
        """The folders of the checkpoints, oldest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted((path for path in found if _STEP.fullmatch(path.name)), key=_steps)

    def models(self) -> list[Path]:
        """The canonical files of the checkpoints, oldest first."""
        return [path / _MODEL for path in self.paths()]

    def save(self, config: TransformerConfig, state: State, progress: Progress) -> None:
        """Adds a checkpoint, then removes those that are too old. Raises OSError if the disk does; nothing has then changed."""
        self.folder.mkdir(exist_ok=True)
        target = self.folder / f"step-{progress.steps:08}"
        if target.is_dir():  # an unreadable checkpoint of that step, since a run never writes one twice
            self._remove(target)
        with replacing(target) as temporary:
            temporary.mkdir()
            canonical.save(temporary / _MODEL, config, parameters_of(state))
            moments = {name: value for name, value in state.items() if not name.startswith("parameters.")}
            container.write(temporary / _OPTIMIZER, moments, {})
            digests = {name: digest(temporary / name) for name in (_MODEL, _OPTIMIZER)}
            (temporary / _PROGRESS).write_text(schema.dump(asdict(progress) | {"sha256": digests}), encoding="utf-8")
        for path in self.paths()[: -self.keep]:
            self._remove(path)

    def newest(self, config: TransformerConfig, take: Take = lambda state, progress: None) -> Newest:
        """Returns the newest checkpoint that can be read and taken, None if there is none yet; and the problems of newer ones.

        take: uses the checkpoint, and raises ValueError if it does not fit. Raises ValueError if there are checkpoints and none can be
        taken.
        """
        problems: list[str] = []
        for path in reversed(self.paths()):
            try:
                found = _read(path, config)
                take(*found)
                return found, problems
            except (ValueError, OSError) as error:
                problems.append(f"{path} cannot be read: {error}")
        if problems:
            raise ValueError("no checkpoint can be read:\n" + "\n".join(problems))
        return None, problems

    def clean(self) -> None:
        """Removes what a killed run was about to write."""
        for folder in (self.folder.parent, self.folder):
            for path in folder.glob(".*.tmp") if folder.is_dir() else ():
                if _TEMPORARY.fullmatch(path.name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _remove(self, path: Path) -> None:
        """Renames the folder first, then removes it, so that no folder with a checkpoint's name lacks a file."""
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(OSError):
            path.rename(temporary)
            shutil.rmtree(temporary)


def average(paths: Sequence[Path]) -> Checkpoint:
    """Returns the mean of canonical checkpoints of one config, computed in float64: the paper translates with the mean of the last ones.

    Raises ValueError if there are none, and if the configs differ. Source: Vaswani et al. 2017, section 6.1.
    """
    if not paths:
        raise ValueError("an average needs at least one checkpoint")
    first = canonical.load(paths[0])
    sums = {name: value.astype(np.float64) for name, value in first.parameters.items()}
    for path in paths[1:]:
        checkpoint = canonical.load(path)
        if checkpoint.config != first.config:
            raise ValueError(f"checkpoints of one config are averaged; {path} has another than {paths[0]}")
        for name, value in checkpoint.parameters.items():
            sums[name] += value
    return Checkpoint(first.config, {name: (value / len(paths)).astype(first.parameters[name].dtype) for name, value in sums.items()})


def _read(path: Path, config: TransformerConfig) -> tuple[State, Progress]:
    model = canonical.load(path / _MODEL)
    if model.config != config:
        fields = [name for name, value in config.to_dict().items() if model.config.to_dict()[name] != value]
        raise ValueError(f"its config differs from the run's in {', '.join(fields)}")
    optimizer = container.read(path / _OPTIMIZER)
    shapes = {f"{part}.{name}": value.shape for part in _MOMENTS for name, value in model.parameters.items()}
    if problems := optimizer.problems or strict.problems(optimizer.tensors, shapes):
        raise CheckpointError(path / _OPTIMIZER, problems)
    said = schema.load(path / _PROGRESS, _FIELDS)
    if others := [name for name, wanted in said.pop("sha256").items() if wanted != digest(path / name)]:
        raise ValueError(f"{', '.join(others)} must be what was written; the SHA-256 is another")
    schema.refuse(schema.problems(said["position"], _POSITION, "position"))
    progress = Progress(**said | {"position": Position(**said["position"])})
    if progress.steps != _steps(path):
        raise ValueError(f"{_PROGRESS} must be that of step {_steps(path)}; got {progress.steps}")
    parameters = {f"parameters.{name}": value for name, value in model.parameters.items()}
    return parameters | {name: np.array(value) for name, value in optimizer.tensors.items()}, progress


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _steps(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
