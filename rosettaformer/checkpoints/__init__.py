"""Checkpoints: the canonical safetensors file, and foreign formats, one table each.

A format is a module with `view(path, **options) -> Checkpoint`, `save(path, config, parameters, **options)` and the names of the
options that each takes, LOAD_OPTIONS and SAVE_OPTIONS. What is viewed is read where it is looked at, tensor by tensor.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.suggestions import known

__all__ = ["FORMATS", "Checkpoint", "CheckpointError", "load", "options", "recognised", "save", "view"]

# name -> module, imported when it is asked for
FORMATS = {"canonical": "canonical", "torch-transformer": "torch_transformer", "hugging-face": "hugging_face"}
SHOWN = 20  # problems that a message lists


@dataclass(frozen=True)
class Checkpoint:
    """A model: its config, and its parameters by canonical name, tied tensors once.

    foreign: what its folder of Hugging Face says beyond the config, by the name of the JSON file: labels, ids of tokens, settings of
    generation. It passes through a canonical file unchanged.
    """

    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]
    foreign: Mapping[str, Any] = field(default_factory=dict)

    def in_memory(self) -> "Checkpoint":
        """The same with arrays of its own, which no change of a file reaches."""
        return replace(self, parameters={name: np.array(array) for name, array in self.parameters.items()})


class CheckpointError(ValueError):
    """The first problems of a checkpoint and how many there are; `problems` holds all, one by one."""

    def __init__(self, name: str | Path, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        more = [f"and {len(self.problems) - SHOWN} more"] if len(self.problems) > SHOWN else []
        super().__init__(f"{name} is not a valid checkpoint:\n  " + "\n  ".join(self.problems[:SHOWN] + more))


def load(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """The config and canonical parameters of a file or folder of that format, by default of the one that `recognised` finds.

    Raises ValueError listing every problem of the file.
    """
    return view(path, format, **options).in_memory()


def view(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """As `load`, with parameters that are read where they are looked at: views of the file, which must not be changed meanwhile."""
    module = _module(format or recognised(path))
    given = {name: value for name, value in options.items() if value not in (None, (), [])}
    if others := given.keys() - {*module.LOAD_OPTIONS}:
        raise ValueError(f"{path} is of a format that takes no {', '.join(sorted(others))}")
    return module.view(path, **given)


def save(
    path: str | Path,
    config: TransformerConfig,
    parameters: Mapping[str, np.ndarray],
    format: str = "canonical",
    *,
    foreign: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    **options: Any,
) -> None:
    """Writes config and canonical parameters in that format, whole or not at all; raises ValueError on what it cannot express.

    foreign: as of `Checkpoint`; a format that has no place for it leaves it out. dtype: what every tensor is rounded to.
    options: those of the format, and `written`, which is told how many bytes of tensors have been written since the last time.
    """
    _module(format).save(path, config, parameters, foreign=foreign, dtype=dtype, **options)


def recognised(path: str | Path) -> str:
    """The format of a file or folder, by what is there; canonical where it is none of the others."""
    return importlib.import_module(".formats", __package__).recognised(Path(path))


def options(format: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the options that `load` and `save` take for that format."""
    module = _module(format)
    return module.LOAD_OPTIONS, module.SAVE_OPTIONS


def _module(format: str) -> ModuleType:
    known("format", [format], FORMATS)
    return importlib.import_module(f".{FORMATS[format]}", __package__)
