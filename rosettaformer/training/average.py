"""The mean of the last checkpoints' parameters, with which the paper translates (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..checkpoints import Checkpoint, canonical

__all__ = ["average"]


def average(paths: Sequence[Path]) -> Checkpoint:
    """The mean over canonical checkpoints of one config, added up in float64.

    Raises ValueError where there is none, and where the configs differ.
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
