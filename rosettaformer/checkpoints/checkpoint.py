"""What a checkpoint holds, and what is wrong with one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig

__all__ = ["Checkpoint", "CheckpointError"]


@dataclass(frozen=True)
class Checkpoint:
    """A model: its config, and its parameters by canonical name, tied tensors once."""

    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]


class CheckpointError(ValueError):
    """All problems of a checkpoint at once; `problems` holds them one by one."""

    def __init__(self, name: str | Path, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__(f"{name} is not a valid checkpoint:\n  " + "\n  ".join(self.problems))
