"""What a checkpoint holds, and what is wrong with one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference_numpy import TransformerConfig

__all__ = ["Checkpoint", "CheckpointError"]

SHOWN = 20  # problems that a message lists


@dataclass(frozen=True)
class Checkpoint:
    """A model: its config, and its parameters by canonical name, tied tensors once."""

    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]


class CheckpointError(ValueError):
    """The first problems of a checkpoint and how many there are; `problems` holds all, one by one."""

    def __init__(self, name: str | Path, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        more = [f"and {len(self.problems) - SHOWN} more"] if len(self.problems) > SHOWN else []
        super().__init__(f"{name} is not a valid checkpoint:\n  " + "\n  ".join(self.problems[:SHOWN] + more))
