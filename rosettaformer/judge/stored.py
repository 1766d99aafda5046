"""Parameters that may be too large to copy: they stay in files and are rounded when read."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import parameters

from ..files.checkpoints import Checkpoint
from ..files.checkpoints.container import release
from ..files.checkpoints.strict import numpy_dtype

IN_MEMORY = 1 << 26  # parameters of up to this many bytes are copied, so that the file may change
KEPT = 1 << 27  # arrays of up to this many bytes are kept until another one is read
SMALL = 1 << 23  # all arrays of parameters of up to this many bytes are kept
Step = str | Callable[[str, np.ndarray], np.ndarray]  # a dtype, or a function of a name and its array


class Stored(Mapping[str, np.ndarray]):
    """Parameters by canonical name, each read from its file on access and not kept.

    steps: applied to a stored array in order: a dtype to round to, or a function of the name and
    the array.
    """

    def __init__(self, source: "_Source", steps: tuple[Step, ...] = ()) -> None:
        self._source, self._steps = source, steps

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Stored":
        """Returns the parameters of a checkpoint as views of files; small ones are copied."""
        small = sum(array.nbytes for array in checkpoint.parameters.values()) <= IN_MEMORY
        return cls(_Source(dict((checkpoint.in_memory() if small else checkpoint).parameters)))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._source.read(name, self._steps)

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.arrays)

    def __len__(self) -> int:
        return len(self._source.arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._source.arrays

    @property
    def dtype(self) -> str:
        """The dtype of the stored arrays."""
        return str(next(iter(self._source.arrays.values())).dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of all parameters after rounding."""
        dtype = next((step for step in reversed(self._steps) if isinstance(step, str)), self.dtype)
        return sum(array.size for array in self._source.arrays.values()) * numpy_dtype(dtype).itemsize

    @property
    def digest(self) -> str:
        """A string that identifies these parameters; empty if only their values do."""
        return f"{self._source.digest} {self._steps}" if all(isinstance(step, str) for step in self._steps) else ""

    def at(self, dtype: str) -> "Stored":
        """Returns the parameters rounded to the dtype."""
        steps, before = self._steps, (self.dtype, *self._steps)
        if steps and isinstance(steps[-1], str) and isinstance(before[-2], str) and _holds(steps[-1], before[-2]):
            steps = steps[:-1]  # that step rounds nothing
        return Stored(self._source, (*steps, dtype))

    def then(self, step: Step) -> "Stored":
        """Returns the parameters after one step more."""
        return Stored(self._source, (*self._steps, step))

    def called(self, names: Mapping[str, str]) -> "Stored":
        """Returns some of the parameters under other names. names: from new to current names."""
        return Stored(_Source({name: self._source.arrays[own] for name, own in names.items()}), self._steps)


class _Source:
    """Stored arrays, and the last one read; all that were read if they are small."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._small = sum(array.nbytes for array in arrays.values()) <= SMALL
        self._kept: dict[tuple[str, tuple[Step, ...]], np.ndarray] = {}

    def __reduce__(self) -> tuple[type["_Source"], tuple[dict[str, np.ndarray]]]:
        """Copies lack what was read and hashed, which another thread may add to meanwhile."""
        return _Source, (self.arrays,)

    def read(self, name: str, steps: tuple[Step, ...]) -> np.ndarray:
        if (name, steps) in self._kept:
            return self._kept[name, steps]
        if not self._small:
            self._kept.clear()  # frees its memory before the next array is made
        release(stored := self.arrays[name])
        array = functools.reduce(functools.partial(_after, name), steps, stored)
        if array is not stored:
            release(stored)
            if array.nbytes <= KEPT and (not self._small or all(isinstance(step, str) for step in steps)):
                self._kept[name, steps] = array
        return array

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the arrays."""
        found = hashlib.sha256()
        for name, array in self.arrays.items():
            found.update(repr((name, array.dtype.name, array.shape, array.strides)).encode())
            found.update(array.ravel(order="K").view(np.uint8).data)
            release(array)
        return found.hexdigest()


def _after(name: str, array: np.ndarray, step: Step) -> np.ndarray:
    if not isinstance(step, str):
        return step(name, array)
    with np.errstate(over="ignore"):  # values out of the dtype's range become infinite
        return array.astype(numpy_dtype(step), copy=False)


def _holds(dtype: str, other: str) -> bool:
    """Whether a dtype can represent every value of another one."""
    return np.can_cast(numpy_dtype(other), numpy_dtype(dtype))


def changed(arrays: Mapping[str, np.ndarray], change: Callable[[str, np.ndarray], np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the parameters after a change, a function of name and array."""
    return arrays.then(change) if isinstance(arrays, Stored) else {name: change(name, array) for name, array in arrays.items()}


def in_c_order(name: str, array: np.ndarray) -> np.ndarray:
    """Returns the array in C order; a change for `changed`."""
    return np.asarray(array, order="C")


class Branch(Mapping[str, Any]):
    """Parameters nested by the parts of their names, each read on access."""

    def __init__(self, arrays: Stored, names: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._children = {part: Branch(arrays, child) if isinstance(child, dict) else child for part, child in names.items()}

    def __getitem__(self, part: str) -> Any:
        child = self._children[part]
        return child if isinstance(child, Branch) else self._arrays[child]

    def __iter__(self) -> Iterator[str]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, part: object) -> bool:
        return part in self._children

    @property
    def branches(self) -> dict[str, "Branch"]:
        """The child branches, by name."""
        return {part: child for part, child in self._children.items() if isinstance(child, Branch)}

    @property
    def names(self) -> dict[str, Any]:
        """The names of the parameters, nested in the same way."""
        return {part: child.names if isinstance(child, Branch) else child for part, child in self._children.items()}

    def flat(self) -> Stored:
        """Returns the parameters of the branch under their names within it."""
        return self._arrays.called(parameters.flatten(self.names))


def nested(arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Returns parameters nested as the reference takes them."""
    return Branch(arrays, parameters.nest({name: name for name in arrays})) if isinstance(arrays, Stored) else parameters.nest(arrays)


def flattened(tree: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """Returns nested parameters by dotted name; the inverse of `nested`."""
    return tree.flat() if isinstance(tree, Branch) else parameters.flatten(tree)


def branches(tree: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the branches of nested parameters by name, without reading a parameter."""
    return tree.branches if isinstance(tree, Branch) else {part: child for part, child in tree.items() if isinstance(child, Mapping)}
