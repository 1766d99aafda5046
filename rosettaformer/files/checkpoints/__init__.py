"""Checkpoints: the canonical safetensors file, and foreign formats, one table each.

A format is a module with `view(path, **options) -> Checkpoint`, `save(path, config, parameters, **options)` and the names of their options,
LOAD_OPTIONS and SAVE_OPTIONS. The tensors of a view are read on access, one by one.
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

# name -> module, imported on demand
FORMATS = {"canonical": "canonical", "torch-transformer": "torch_transformer", "hugging-face": "hugging_face"}
SHOWN = 20  # problems that a message lists


@dataclass(frozen=True)
class Checkpoint:
    """A model: its config, and its parameters by canonical name, tied tensors once.

    foreign: what its Hugging Face folder says beyond the config, by the name of the JSON file: labels, token ids, generation settings. A
    canonical file stores it unchanged.
    """

    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]
    foreign: Mapping[str, Any] = field(default_factory=dict)

    def in_memory(self) -> "Checkpoint":
        """Returns a copy with arrays in memory, which no change of a file reaches."""
        return replace(self, parameters={name: np.array(array) for name, array in self.parameters.items()})


class CheckpointError(ValueError):
    """The first problems of a checkpoint and their number; `problems` holds all, one by one."""

    def __init__(self, name: str | Path, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        more = [f"and {len(self.problems) - SHOWN} more"] if len(self.problems) > SHOWN else []
        super().__init__(f"{name} is not a valid checkpoint:\n  " + "\n  ".join(self.problems[:SHOWN] + more))


def load(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """Returns the config and canonical parameters of a file or folder in that format, by default the one that `recognised` finds.

    Raises ValueError listing every problem of the file.
    """
    return view(path, format, **options).in_memory()


def view(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """Like `load`, with parameters that are read on access: views of the file, which must not change meanwhile."""
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
    """Writes config and canonical parameters in that format, whole or not at all; raises ValueError if the format cannot express them.

    foreign: see `Checkpoint`; a format without a place for it leaves it out. dtype: every tensor is rounded to it. options: those of the
    format, and `written`, which is called with the number of bytes of tensors written since the last call.
    """
    _module(format).save(path, config, parameters, foreign=foreign, dtype=dtype, **options)


def recognised(path: str | Path) -> str:
    """Returns the format of a file or folder, from its content; canonical if no other format fits."""
    return importlib.import_module(".formats", __package__).recognised(Path(path))


def own_format(path: str | Path) -> str:
    """Returns the format of what shows its config by itself: hugging-face of such a folder, otherwise canonical, whose reader says what
    other files are.
    """
    return found if (found := recognised(path)) == "hugging-face" else "canonical"


def options(format: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the options that `load` and `save` take for that format."""
    module = _module(format)
    return module.LOAD_OPTIONS, module.SAVE_OPTIONS


def _module(format: str) -> ModuleType:
    known("format", [format], FORMATS)
    return importlib.import_module(f".{FORMATS[format]}", __package__)
