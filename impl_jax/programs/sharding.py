"""A model on a mesh: where parameters and rows lie, and what a program makes of them.

The rules are `reference_numpy.sharding.splits`. At rest a parameter is split over both axes of the
mesh, or whole along data if it is replicated. A program brings it together over data where it is
used, forward and backward, and never over model. Arrays of JAX divide: a vocabulary and rows that
do not are held with zeros behind, which a program cuts off before it computes anything.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from reference_numpy import TransformerConfig
from reference_numpy import parameters as canonical
from reference_numpy import sharding as declared
from reference_numpy.sharding import Split

from .. import framework
from ..framework import Array, axes_of

__all__ = ["Processes", "Sharding", "fetched", "mapped", "name_of", "named"]

AXES = ("data", "model")
Tree = TypeVar("Tree")  # of a model's parameters


class Processes(declared.Group):
    """The processes of a run, as `jax.distributed` starts them."""

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; every process must ask."""
        return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))

    def barrier(self) -> None:
        """Waits until every process is here."""
        multihost_utils.sync_global_devices("barrier")


class Place(NamedTuple):
    """Where a parameter lies: its shape, the shape that is held, and how it is split."""

    shape: tuple[int, ...]
    held: tuple[int, ...]
    rest: Split
    used: Split  # not over data


class Sharding:
    """The mesh of devices of all processes, and where each parameter and each row lies on it.

    component: None for what has no parameters. axes: Auto, or Explicit, which has no arrays of
    uneven parts: what does not divide is brought together there, and with even on Auto axes, too.
    Raises ValueError on an axis that the mesh does not divide, and on devices that are missing.
    """

    def __init__(
        self,
        config: TransformerConfig,
        mesh: declared.Mesh,
        device: str = "cpu",
        component: str | None = "transformer",
        axes: AxisType = AxisType.Auto,
        even: bool = False,
    ) -> None:
        shapes = canonical.shapes(config, component) if component else {}
        splits = declared.splits(config, mesh, component) if component else {}
        self.mesh = _mesh(mesh, device, axes)
        self.explicit, self.even = axes == AxisType.Explicit, even or axes == AxisType.Explicit
        self.sizes, self.parts = mesh.sizes, mesh.data
        self.gathers = mesh.data > 1 and not mesh.replicate
        self.places = {name: self._place(shape, splits[name]) for name, shape in shapes.items()}

    def _place(self, shape: tuple[int, ...], rest: Split) -> Place:
        counts = self._counts(rest)
        held = tuple(-(-size // count) * count for size, count in zip(shape, counts, strict=True))
        used = tuple("model" if "model" in axes_of(place) else None for place in rest)
        return Place(shape, held, rest, used)

    def _counts(self, spec: Split) -> list[int]:
        """Into how many parts each axis of an array is split."""
        return [math.prod(self.sizes[axis] for axis in axes_of(place)) for place in spec]

    def at(self, spec: Split = ()) -> NamedSharding:
        """This sharding on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def state(self, empty: Tree, values: Callable[[str], np.ndarray]) -> Tree:
        """All parameters at rest, from values by name; a process reads only the parts it holds."""

        def at_rest(name: str, _: jax.Array) -> jax.Array:
            return self._array(values(name), self.places[name].held, self.places[name].rest)

        return mapped(at_rest, empty)

    def constant(self, value: np.ndarray) -> jax.Array:
        """An array that every device has."""
        return self._array(value, value.shape, ())

    def whole(self, name: str, array: jax.Array) -> np.ndarray:
        """A parameter, or what has its shape, brought together in every process."""
        return np.ascontiguousarray(fetched(array)[tuple(map(slice, self.places[name].shape))])

    def batch(self, x: Array, parts: int = 1) -> jax.Array:
        """Rows, split into parts and each of these over data: `parts rows ...`."""
        x = np.asarray(x)
        x = x.reshape(parts, len(x) // parts, *x.shape[1:])
        rows = -(-x.shape[1] // self.parts) * self.parts
        return self._array(x, (parts, rows, *x.shape[2:]), (None, "data"))

    def _array(self, value: np.ndarray, held: tuple[int, ...], spec: Split) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        if dtype.kind in "iu":
            dtype = np.dtype(np.int32)  # XLA fails on a scatter by uneven parts of 64-bit ids

        def part(index: Any) -> np.ndarray:
            own = [range(size)[each] for each, size in zip(index, held, strict=True)]
            filled, found = np.zeros([len(each) for each in own], dtype), value[index]
            filled[tuple(map(slice, found.shape))] = found
            return filled

        return jax.make_array_from_callback(held, self.at(spec), part, dtype)

    # In a program:

    def rows(self, x: jax.Array, rows: int) -> jax.Array:
        """The real rows of `batch`: `parts rows ...`, or without parts if there is one."""
        if self.explicit and rows != x.shape[1]:
            x = self.put(x)
        x = x[:, :rows]
        return self.put(x, None, "data") if len(x) > 1 else self.put(x[0], "data")

    def filled(self, x: jax.Array) -> jax.Array:
        """Rows, with zeros behind if their parts would be uneven."""
        more = -len(x) % self.parts
        if self.even or not more:
            return x
        return self.put(jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)]), "data")

    def used(self, name: str, array: jax.Array) -> jax.Array:
        """A parameter as it is used: brought together over data, without the zeros behind."""
        place = self.places[name]
        array = self.put(self.put(array, *place.rest), *place.used)
        return self._cut(place, array, place.used)

    def alone(self, name: str, array: jax.Array) -> jax.Array:
        """A parameter as it rests, without the zeros behind; what does not divide then is whole."""
        place = self.places[name]
        return self._cut(place, array, self._even(place.shape, place.rest))

    def _cut(self, place: Place, array: jax.Array, spec: Split) -> jax.Array:
        if place.held == place.shape:
            return array
        if self.explicit:
            array = self.put(array, *self._even(place.shape, spec))
        return self.put(array[tuple(map(slice, place.shape))], *spec)

    def put(self, x: jax.Array, *spec: declared.Place) -> jax.Array:
        """x with this sharding; an axis that is left out is whole."""
        spec = self._even(x.shape, spec) if self.even else spec
        move = jax.sharding.reshard if self.explicit else jax.lax.with_sharding_constraint
        return move(x, self.at(spec))

    def _even(self, shape: tuple[int, ...], spec: Split) -> Split:
        """The spec without what would not divide."""
        counts = zip(shape, self._counts(spec), spec, strict=False)
        return tuple(None if size % count else place for size, count, place in counts)


def mapped(function: Callable[[str, jax.Array], jax.Array], state: Tree) -> Tree:
    """A state of the same structure, of `function(name, value)` of every variable."""
    return jax.tree.map_with_path(lambda path, value: function(name_of(path), value), state)


def named(state: nnx.State) -> dict[str, jax.Array]:
    """The variables of a state by name."""
    return {name_of(path): value for path, value in jax.tree.leaves_with_path(state)}


def name_of(path: KeyPath) -> str:
    """The name of a variable in a state; the last part of its path is its value."""
    return ".".join(str(part.key) for part in path if hasattr(part, "key"))


def fetched(array: jax.Array) -> np.ndarray:
    """The array brought together in every process."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.array(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def _mesh(mesh: declared.Mesh, device: str, axes: AxisType) -> jax.sharding.Mesh:
    devices = jax.devices(framework.device(device).platform)
    few = len(devices) < mesh.devices
    if few or (jax.process_count() > 1 and len(devices) > mesh.devices):
        raise ValueError(
            f"the mesh {mesh} needs {mesh.devices} device{'s' * (mesh.devices > 1)}"
            f"{'' if few else ', all that its processes have'}; JAX sees {len(devices)}"
        )
    grid = np.array(devices[: mesh.devices]).reshape(mesh.data, mesh.model)
    return jax.sharding.Mesh(grid, AXES, axis_types=(axes, axes))
