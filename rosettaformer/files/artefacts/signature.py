"""Describes an exported model's inputs and outputs; defines the interface of the runtimes."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    dtype: NumPy's name. shape: a number for each fixed axis; otherwise the axis' name, or "".
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(size or '?') for size in self.shape)}]"


@dataclass(frozen=True)
class Entry:
    """A function of an exported model.

    kept: state that a call changes, such as a cache. body: identifies what the function runs, equal
    for two names of the same function; "" if unknown.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kept: tuple[Tensor, ...] = ()
    body: str = ""


class Artefact(abc.ABC):
    """An opened model.

    entries: its functions by name; a file with a single program calls it `forward`. versions: the
    versions of the packages that run it.
    """

    entries: Mapping[str, Entry]
    versions: Mapping[str, str]

    @abc.abstractmethod
    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a function on the state stored in the file, and returns its outputs by name.

        inputs: arrays by name, in the entry's dtypes. Errors of the runtime are not caught.
        """

    def resume(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a function on the state that its last call left, and returns its outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not support functions with state; got {entry}")


DEFAULTS = ("serving_default", "serve", "main")  # names of the whole model if no function is named forward
T = TypeVar("T")


def named(signatures: Mapping[str, T]) -> dict[str, T]:
    """Renames signatures to function names, the whole model first."""
    found = dict(signatures.items())
    default = "forward" if "forward" in found else next((name for name in DEFAULTS if name in found), "")
    return ({"forward": found.pop(default)} if default else {}) | found
