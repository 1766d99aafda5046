"""What JAX asks for: devices and settings by name, traced arrays, sharding as part of a type; and
every private name of JAX and Flax that the package uses, which no other file names.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = [
    "PRIVATE",
    "Array",
    "beside",
    "bucket",
    "device",
    "device_context",
    "einsum",
    "has_explicit_axes",
    "id_bounds",
    "is_traced",
    "program_count",
    "take_last",
    "take_rows",
]

Array = jax.Array | np.ndarray  # what a call may be given, before a program

# Private names of JAX and Flax, and what would be lost without each.
PRIVATE = {
    "jax.jit._cache_size": "nothing would count the programs of a call",
    "flax.nnx.Pytree._pytree__state": "each call would split its module again",
    "flax.nnx.Pytree._pytree__nodes": "each call would split its module again",
}

_PRECISION = {"cpu": "highest", "cuda": "highest", "cuda-tf32": "tensorfloat32"}


def device(name: str) -> jax.Device:
    """The first device of this process: cpu, cuda, or cuda-tf32, whose float32 products are TF32.

    Raises ValueError on another name and if there is no such device.
    """
    if name not in _PRECISION:
        raise ValueError(f"device must be one of {', '.join(_PRECISION)}; got {name!r}")
    platform = name.removesuffix("-tf32")
    try:
        return jax.local_devices(backend=platform)[0]
    except RuntimeError:
        raise ValueError(
            f"device {name} needs a {platform} backend; JAX has {jax.default_backend()}"
        ) from None


@contextlib.contextmanager
def device_context(name: str, dtype: str) -> Iterator[None]:
    """Sets the device of new arrays, the precision of products, and 64-bit types for float64."""
    with (
        jax.default_device(device(name)),
        jax.default_matmul_precision(_PRECISION[name]),
        jax.enable_x64(dtype == "float64"),
    ):
        yield


def bucket(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 192, ... that holds a length: few programs serve all."""
    return -(-length // 64) * 64 if length > 64 else max(16, 1 << (length - 1).bit_length())


def is_traced(value: Any) -> bool:
    """Whether the value belongs to a program that is being traced, and so has no elements."""
    return isinstance(value, jax.core.Tracer)


def id_bounds(ids: jax.Array) -> tuple[int, ...]:
    """The smallest and the largest id; () if they are traced, not integers, or none."""
    if is_traced(ids) or not ids.size or ids.dtype.kind not in "iu":
        return ()
    concrete = np.asarray(ids)
    return int(concrete.min()), int(concrete.max())


def program_count(function: Callable[..., Any]) -> int:
    """How many XLA programs a function of `jax.jit` has."""
    found: int = function._cache_size()  # type: ignore[attr-defined]
    return found


def has_explicit_axes(x: jax.Array) -> bool:
    """Whether the array lies on a mesh of explicit axes, which make sharding part of its type."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def take_rows(table_vd: jax.Array, index: jax.Array, mode: str = "fill") -> jax.Array:
    """`table[index]`, `... d`; NaN for an index out of range, also -1; mode clip: the nearest row.

    On explicit axes the result is sharded as the index, and in the last axis as the table, unless
    the index takes that axis of the mesh.
    """
    sharding = None
    if has_explicit_axes(index):
        places = jax.typeof(index).sharding
        table_spec = _free(table_vd, places.spec)
        table_vd = _brought(table_vd, places.mesh, table_spec)
        sharding = NamedSharding(places.mesh, PartitionSpec(*places.spec, table_spec[1]))
    return (
        jnp.asarray(table_vd)
        .at[index]
        .get(mode=mode, wrap_negative_indices=False, out_sharding=sharding)
    )


def take_last(x_btv: jax.Array, index_bt: jax.Array) -> jax.Array:
    """`x[b, t, index[b, t]]`, `b t`; NaN for an index out of range, also for -1.

    On explicit axes the last axis is brought together.
    """
    if has_explicit_axes(x_btv):
        places = jax.typeof(x_btv).sharding
        x_btv = _brought(x_btv, places.mesh, (*places.spec[:-1], None))
    return jnp.take_along_axis(x_btv, index_bt[..., None], axis=-1, wrap_negative_indices=False)[
        ..., 0
    ]


def einsum(subscripts: str, x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
    """`jnp.einsum` of two arrays, whose result on explicit axes is sharded as both are.

    Along a letter of both, y is brought to where x lies; along one of its own it stays sharded,
    unless x takes that axis of the mesh for another letter.
    """
    if not has_explicit_axes(x):
        return jnp.einsum(subscripts, x, y, **options)
    letters, others, result = re.split(",|->", subscripts)
    mesh, spec = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    places = dict(zip(others, _free(y, spec), strict=True)) | dict(zip(letters, spec, strict=True))
    sharding = NamedSharding(mesh, PartitionSpec(*map(places.get, result)))
    return jnp.einsum(
        subscripts, x, _brought(y, mesh, map(places.get, others)), out_sharding=sharding, **options
    )


def beside(y: jax.Array, x: jax.Array) -> jax.Array:
    """y, which broadcasts to x; on explicit axes sharded as x is in the axes that y has."""
    if not has_explicit_axes(x):
        return y
    places = jax.typeof(x).sharding
    spec = zip(y.shape, places.spec[x.ndim - y.ndim :], strict=True)
    return _brought(y, places.mesh, (None if size == 1 else place for size, place in spec))


def _brought(x: jax.Array, mesh: Any, spec: Iterable[Any]) -> jax.Array:
    """x in this sharding; an array that lies on no mesh may be used beside all others."""
    return (
        jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))
        if has_explicit_axes(x)
        else x
    )


def _free(x: jax.Array, taken: PartitionSpec) -> PartitionSpec:
    """The sharding of x, without the axes of the mesh that are taken."""

    def axes(place: Any) -> tuple[str, ...]:
        return () if place is None else place if isinstance(place, tuple) else (place,)

    used = {axis for place in taken for axis in axes(place)}
    return PartitionSpec(
        *(
            tuple(axis for axis in axes(place) if axis not in used) or None
            for place in jax.typeof(x).sharding.spec
        )
    )
