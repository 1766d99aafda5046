"""The progress of a run, as stored in a checkpoint."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from . import schema
from .corpus import Position

FILE = "progress.json"
_NAME = re.compile(r"(model|optimizer)(-\d{5,}-of-\d{5,})?\.safetensors(\.index\.json)?")
_DIGESTS = (lambda value: isinstance(value, dict) and all(map(_NAME.fullmatch, value)), "an object of the checkpoint's files")
_FIELDS: schema.Table = {
    "seed": schema.integer(), "steps": schema.integer(1), "position": schema.OBJECT, "best": schema.optional(schema.number()),
    "stale": schema.integer(), "seconds": schema.number(), "sha256": _DIGESTS,
}  # fmt: skip
_POSITION = {"epoch": schema.integer(), "batch": schema.integer()}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    steps: completed steps, which together with the seed determine the random state. position: of
    the next batch. best: the lowest validation loss so far. stale: validations since then. seconds:
    training time over all calls.
    """

    seed: int
    steps: int = 0
    position: Position = field(default_factory=Position)
    best: float | None = None
    stale: int = 0
    seconds: float = 0.0

    def validated(self, loss: float) -> "Progress":
        """Returns the progress after a validation with this loss."""
        better = loss < (math.inf if self.best is None else self.best)
        return replace(self, best=loss if better else self.best, stale=0 if better else self.stale + 1)

    def write(self, folder: Path, digests: Mapping[str, str]) -> None:
        """Writes the progress and the checksums of the checkpoint's files into its folder."""
        (folder / FILE).write_text(schema.dump(asdict(self) | {"sha256": dict(digests)}), encoding="utf-8")


def read(folder: Path) -> tuple[Progress, dict[str, str]]:
    """Reads a checkpoint's progress and checksums. Raises ValueError if the file is invalid."""
    said = schema.load(folder / FILE, _FIELDS)
    digests = said.pop("sha256")
    schema.refuse(schema.problems(said["position"], _POSITION, "position"))
    return Progress(**said | {"position": Position(**said["position"])}), digests
