"""A model on a mesh: the shardings of parameters and rows, at rest and in a program.

The rules are `reference_numpy.sharding.splits`. At rest, a parameter is split over both mesh axes,
or whole along data if replicated. A program gathers it over data where it is used, forward and
backward, and never over model. JAX arrays must divide evenly: a vocabulary or rows that do not are
padded with zeros, which a program cuts off before computing.
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
    """The processes of a run, as started by `jax.distributed`."""

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()

    def any(self, flag: bool) -> bool:
        """Returns whether any process sets the flag; every process must call this."""
        return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))

    def barrier(self) -> None:
        """Waits until every process arrives."""
        multihost_utils.sync_global_devices("barrier")


class Place(NamedTuple):
    """The layout of a parameter: its shape, its padded shape, and its splits at rest and in use."""

    shape: tuple[int, ...]
    held: tuple[int, ...]
    rest: Split
    used: Split  # not split over data


class Sharding:
    """The mesh of all processes' devices, and the sharding of each parameter and row.

    component: None if there are no parameters. axes: Auto, or Explicit, which has no uneven parts:
    uneven arrays are gathered there, and with even also on Auto axes. Raises ValueError on an axis
    that the mesh does not divide, and if devices are missing.
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
        """Returns the number of parts of each array axis."""
        return [math.prod(self.sizes[axis] for axis in axes_of(place)) for place in spec]

    def at(self, spec: Split = ()) -> NamedSharding:
        """Returns this sharding on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def state(self, empty: Tree, values: Callable[[str], np.ndarray]) -> Tree:
        """Returns all parameters at rest, from values by name; a process reads only its parts."""

        def at_rest(name: str, _: jax.Array) -> jax.Array:
            return self._array(values(name), self.places[name].held, self.places[name].rest)

        return mapped(at_rest, empty)

    def constant(self, value: np.ndarray) -> jax.Array:
        """Returns an array that every device holds."""
        return self._array(value, value.shape, ())

    def whole(self, name: str, array: jax.Array) -> np.ndarray:
        """Gathers a parameter, or an array of its shape, in every process."""
        return np.ascontiguousarray(fetched(array)[tuple(map(slice, self.places[name].shape))])

    def batch(self, x: Array, parts: int = 1) -> jax.Array:
        """Splits rows into parts, and each part over data: `parts rows ...`."""
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

    # Methods for use inside a program:

    def rows(self, x: jax.Array, rows: int) -> jax.Array:
        """Returns the real rows of `batch`: `parts rows ...`; a single part has no axis."""
        if self.explicit and rows != x.shape[1]:
            x = self.put(x)
        x = x[:, :rows]
        return self.put(x, None, "data") if len(x) > 1 else self.put(x[0], "data")

    def filled(self, x: jax.Array) -> jax.Array:
        """Pads rows with zeros if their parts would be uneven."""
        more = -len(x) % self.parts
        if self.even or not more:
            return x
        return self.put(jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)]), "data")

    def used(self, name: str, array: jax.Array) -> jax.Array:
        """Returns a parameter for use: gathered over data and without padding."""
        place = self.places[name]
        array = self.put(self.put(array, *place.rest), *place.used)
        return self._cut(place, array, place.used)

    def alone(self, name: str, array: jax.Array) -> jax.Array:
        """Returns a parameter at rest without padding; axes that then do not divide are whole."""
        place = self.places[name]
        return self._cut(place, array, self.divided(place.shape, place.rest))

    def _cut(self, place: Place, array: jax.Array, spec: Split) -> jax.Array:
        if place.held == place.shape:
            return array
        if self.explicit:
            array = self.put(array, *self.divided(place.shape, spec))
        return self.put(array[tuple(map(slice, place.shape))], *spec)

    def put(self, x: jax.Array, *spec: declared.Place) -> jax.Array:
        """Reshards x; omitted axes are whole."""
        spec = self.divided(x.shape, spec) if self.even else spec
        move = jax.sharding.reshard if self.explicit else jax.lax.with_sharding_constraint
        return move(x, self.at(spec))

    def divided(self, shape: tuple[int, ...], spec: Split) -> Split:
        """Drops the parts of a spec that would not divide evenly."""
        counts = zip(shape, self._counts(spec), spec, strict=False)
        return tuple(None if size % count else place for size, count, place in counts)


def mapped(function: Callable[[str, jax.Array], jax.Array], state: Tree) -> Tree:
    """Maps `function(name, value)` over the variables of a state."""
    return jax.tree.map_with_path(lambda path, value: function(name_of(path), value), state)


def named(state: nnx.State) -> dict[str, jax.Array]:
    """Returns the variables of a state by name."""
    return {name_of(path): value for path, value in jax.tree.leaves_with_path(state)}


def name_of(path: KeyPath) -> str:
    """Returns the name of a variable in a state; the last part of its path is its value."""
    return ".".join(str(part.key) for part in path if hasattr(part, "key"))


def fetched(array: jax.Array) -> np.ndarray:
    """Gathers an array in every process."""
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
