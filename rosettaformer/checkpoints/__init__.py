"""Checkpoints: the canonical safetensors file, and foreign formats, one table each.

A format is a module with `load(path, **options) -> Checkpoint`, `save(path, config, parameters, **options)` and the names of the
options that each takes, LOAD_OPTIONS and SAVE_OPTIONS.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.suggestions import known

__all__ = ["FORMATS", "Checkpoint", "CheckpointError", "load", "options", "save"]

# name -> module, imported when it is asked for
FORMATS = {"canonical": "canonical", "torch-transformer": "torch_transformer"}
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


def load(path: str | Path, format: str = "canonical", **options: Any) -> Checkpoint:
    """The config and canonical parameters of a file of that format; raises ValueError listing every problem of the file."""
    return _module(format).load(path, **options)


def save(
    path: str | Path, config: TransformerConfig, parameters: Mapping[str, np.ndarray], format: str = "canonical", **options: Any
) -> None:
    """Writes config and canonical parameters in that format, whole or not at all; raises ValueError on what it cannot express."""
    _module(format).save(path, config, parameters, **options)


def options(format: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the options that `load` and `save` take for that format."""
    module = _module(format)
    return module.LOAD_OPTIONS, module.SAVE_OPTIONS


def _module(format: str) -> ModuleType:
    known("format", [format], FORMATS)
    return importlib.import_module(f".{FORMATS[format]}", __package__)
