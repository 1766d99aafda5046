"""Checkpoints: the canonical safetensors file, and foreign formats, one table each.

A format is a module with `load(path, **options) -> Checkpoint`, `save(path, config, parameters, **options)` and, as `OPTIONS`, the
names of the options that both take.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from .checkpoint import Checkpoint, CheckpointError

__all__ = ["FORMATS", "Checkpoint", "CheckpointError", "load", "save"]

# name -> module, imported when it is asked for
FORMATS = {"canonical": "canonical", "torch-transformer": "torch_transformer"}


def load(path: str | Path, format: str = "canonical", **options: Any) -> Checkpoint:
    """The config and canonical parameters of a file of that format; raises ValueError listing every problem of the file."""
    return _module(format, options).load(path, **options)


def save(
    path: str | Path, config: TransformerConfig, parameters: Mapping[str, np.ndarray], format: str = "canonical", **options: Any
) -> None:
    """Writes config and canonical parameters in that format, whole or not at all; raises ValueError on what it cannot express."""
    _module(format, options).save(path, config, parameters, **options)


def _module(format: str, options: Mapping[str, Any]) -> ModuleType:
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    module = importlib.import_module(f".{FORMATS[format]}", __package__)
    if foreign := [name for name in options if name not in module.OPTIONS]:
        raise ValueError(f"the format {format} has no option {', '.join(foreign)}")
    return module
