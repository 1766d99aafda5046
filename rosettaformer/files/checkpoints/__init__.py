"""Reads and writes checkpoints: the canonical safetensors file and foreign formats.

A format is a module with `view(path, **options) -> Checkpoint`, `save(path, config, parameters,
**options)`, and the names of their options in LOAD_OPTIONS and SAVE_OPTIONS.
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
SHOWN = 20  # problems that an error message lists


@dataclass(frozen=True)
class Checkpoint:
    """A model's config and its parameters by canonical name; tied tensors appear once.

    foreign: the contents of a Hugging Face folder's JSON files that the config does not express
    (labels, token ids, generation settings), by file name. A canonical file stores them unchanged.
    """

    config: TransformerConfig
    parameters: Mapping[str, np.ndarray]
    foreign: Mapping[str, Any] = field(default_factory=dict)

    def in_memory(self) -> "Checkpoint":
        """Returns a copy whose arrays are in memory, independent of the file."""
        return replace(self, parameters={name: np.array(array) for name, array in self.parameters.items()})


class CheckpointError(ValueError):
    """Lists the first problems of a checkpoint; `problems` holds all of them."""

    def __init__(self, name: str | Path, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        more = [f"and {len(self.problems) - SHOWN} more"] if len(self.problems) > SHOWN else []
        super().__init__(f"{name} is not a valid checkpoint:\n  " + "\n  ".join(self.problems[:SHOWN] + more))


def load(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """Loads the config and canonical parameters from a file or folder.

    format: one of `FORMATS`; detected with `recognised` by default.
    Raises ValueError listing every problem of the file.
    """
    return view(path, format, **options).in_memory()


def view(path: str | Path, format: str | None = None, **options: Any) -> Checkpoint:
    """Like `load`, but maps the file lazily: do not change it while the views are in use."""
    module = _module(format or recognised(path))
    given = {name: value for name, value in options.items() if value not in (None, (), [])}
    if others := given.keys() - {*module.LOAD_OPTIONS}:
        raise ValueError(f"{path}: this format has no option {', '.join(sorted(others))}; remove it, or choose another --from")
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
    """Writes a config and canonical parameters; a failed write leaves nothing behind.

    foreign: see `Checkpoint`; dropped by formats that cannot store it. dtype: rounds every tensor.
    options: the format's own, and `written`, a callback that receives the number of tensor bytes
    written since its last call. Raises ValueError if the format cannot express the config.
    """
    _module(format).save(path, config, parameters, foreign=foreign, dtype=dtype, **options)


def recognised(path: str | Path) -> str:
    """Detects the format of a file or folder from its content; "canonical" if nothing else fits."""
    return importlib.import_module(".formats", __package__).recognised(Path(path))


def own_format(path: str | Path) -> str:
    """Returns "hugging-face" for a folder that includes its config, otherwise "canonical".

    The canonical reader explains files that it cannot read.
    """
    return found if (found := recognised(path)) == "hugging-face" else "canonical"


def options(format: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the option names that `load` and `save` accept for a format."""
    module = _module(format)
    return module.LOAD_OPTIONS, module.SAVE_OPTIONS


def _module(format: str) -> ModuleType:
    known("format", [format], FORMATS)
    return importlib.import_module(f".{FORMATS[format]}", __package__)
