"""What an artefact takes and gives, and the face that every runtime has."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """An input or output: its name, its dtype as NumPy names it, and its sizes: a number where the file fixes it, otherwise the name of the
    size, empty if it has none.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(size or '?') for size in self.shape)}]"


@dataclass(frozen=True)
class Entry:
    """A function of an artefact. kept: what it changes in itself whenever it is called, such as a cache. body: what it runs, the same where
    a file offers it under two names; empty if that is not known.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kept: tuple[Tensor, ...] = ()
    body: str = ""


class Artefact(abc.ABC):
    """An opened file.

    entries: its functions by name; a file with one program has it as `forward`. versions: of what runs it, by package.
    """

    entries: Mapping[str, Entry]
    versions: Mapping[str, str]

    @abc.abstractmethod
    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a function by name. inputs: by name, each in the dtype that the entry says.

        What a function keeps is as it was in the file. Raises whatever the runtime raises on inputs that it refuses.
        """

    def resume(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a function that keeps something, which is as its last call left it."""
        raise NotImplementedError(f"{type(self).__name__} knows no function that keeps something; got {entry}")


DEFAULTS = ("serving_default", "serve", "main")  # that stand for the whole model where none is called forward
T = TypeVar("T")


def named(signatures: Mapping[str, T]) -> dict[str, T]:
    """Returns what belongs to each signature by the name of its function, the whole model's first."""
    found = dict(signatures.items())
    default = "forward" if "forward" in found else next((name for name in DEFAULTS if name in found), "")
    return ({"forward": found.pop(default)} if default else {}) | found
