"""Checkpoints: the canonical safetensors file, and foreign formats, one table each.

A format is a module with `load(path, **options) -> Checkpoint`, `save(path, config, parameters, **options)` and the names of the
options that each takes, LOAD_OPTIONS and SAVE_OPTIONS.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.suggestions import known

from .checkpoint import Checkpoint, CheckpointError

__all__ = ["FORMATS", "Checkpoint", "CheckpointError", "load", "options", "save"]

# name -> module, imported when it is asked for
FORMATS = {"canonical": "canonical", "torch-transformer": "torch_transformer"}


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
