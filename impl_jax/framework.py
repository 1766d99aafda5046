"""Helpers for JAX: devices and settings, traced arrays, sharding, and all private names in use.

No other file of the package uses private names of JAX and Flax.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from reference_numpy.sharding import Place

__all__ = [
    "PRIVATE",
    "Array",
    "aligned",
    "axes_of",
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

Array = jax.Array | np.ndarray  # what a call accepts before it enters a program

# Private names of JAX and Flax, and the consequence of losing each.
PRIVATE = {
    "jax.jit._cache_size": "nothing would count the programs of a call",
}

_PRECISION = {"cpu": "highest", "cuda": "highest", "cuda-tf32": "tensorfloat32"}


def device(name: str) -> jax.Device:
    """Returns this process's first device: cpu, cuda, or cuda-tf32, with float32 products in TF32.

    Raises ValueError on another name, and if there is no such device.
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
    """Rounds a length up to 16, 32, 64, 128, 192, ..., so that a few programs serve all lengths."""
    return -(-length // 64) * 64 if length > 64 else max(16, 1 << (length - 1).bit_length())


def is_traced(value: ArrayLike) -> bool:
    """Whether the value belongs to a program that is being traced, and so has no elements."""
    return isinstance(value, jax.core.Tracer)


def id_bounds(ids: Array) -> tuple[int, ...]:
    """Returns the smallest and largest id; () if they are traced, not integers, or empty."""
    if is_traced(ids) or not ids.size or ids.dtype.kind not in "iu":
        return ()
    concrete = np.asarray(ids)
    return int(concrete.min()), int(concrete.max())


def program_count(function: Callable[..., Any]) -> int:
    """Returns the number of XLA programs of a `jax.jit` function."""
    return function._cache_size()  # type: ignore[attr-defined]


def has_explicit_axes(x: jax.Array) -> bool:
    """Whether the array is on a mesh with explicit axes, which make sharding part of its type."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def take_rows(table_vd: jax.Array, index: jax.Array, mode: str = "fill") -> jax.Array:
    """`table[index]`, `... d`; out-of-range indices (including -1) give NaN, or the nearest row
    (mode "clip").

    On explicit axes the result is sharded like the index and, if possible, like the table.
    """
    sharding = None
    if has_explicit_axes(index):
        places = jax.typeof(index).sharding
        table_spec = _free(table_vd, places.spec)
        table_vd = _resharded(table_vd, places.mesh, table_spec)
        sharding = _sharding(places.mesh, [*places.spec, table_spec[1]])
    rows = jnp.asarray(table_vd).at[index]
    return rows.get(mode=mode, wrap_negative_indices=False, out_sharding=sharding)


def take_last(x_btv: jax.Array, index_bt: jax.Array) -> jax.Array:
    """`x[b, t, index[b, t]]`, `b t`; out-of-range indices (including -1) give NaN.

    On explicit axes, the last axis is gathered.
    """
    if has_explicit_axes(x_btv):
        places = jax.typeof(x_btv).sharding
        x_btv = _resharded(x_btv, places.mesh, (*places.spec[:-1], None))
    index_bt1 = index_bt[..., None]
    return jnp.take_along_axis(x_btv, index_bt1, -1, wrap_negative_indices=False)[..., 0]


def einsum(
    subscripts: str, x: jax.Array, y: jax.Array, preferred_element_type: DTypeLike | None = None
) -> jax.Array:
    """`jnp.einsum` of two arrays; on explicit axes the result is sharded like both.

    Along a shared letter, y is resharded like x; along its own letters it stays sharded, unless x
    uses that mesh axis for another letter.
    """
    product = partial(jnp.einsum, subscripts, preferred_element_type=preferred_element_type)
    if not has_explicit_axes(x):
        return product(x, y)
    letters, others, result = re.split(",|->", subscripts)
    mesh, spec = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    places = dict(zip(others, _free(y, spec), strict=True)) | dict(zip(letters, spec, strict=True))
    y = _resharded(y, mesh, map(places.get, others))
    return product(x, y, out_sharding=_sharding(mesh, map(places.get, result)))


def aligned(y: jax.Array, x: jax.Array) -> jax.Array:
    """Returns y, which broadcasts to x; on explicit axes, sharded like x along the axes of y."""
    if not has_explicit_axes(x):
        return y
    places = jax.typeof(x).sharding
    spec = zip(y.shape, places.spec[x.ndim - y.ndim :], strict=True)
    return _resharded(y, places.mesh, (None if size == 1 else place for size, place in spec))


def axes_of(place: Place) -> tuple[str, ...]:
    """Returns the mesh axes that split an array axis."""
    return () if place is None else place if isinstance(place, tuple) else (place,)


def _resharded(x: jax.Array, mesh: AbstractMesh, spec: Iterable[Place]) -> jax.Array:
    """Reshards x; arrays that are not on a mesh work with all others."""
    return jax.sharding.reshard(x, _sharding(mesh, spec)) if has_explicit_axes(x) else x


def _sharding(mesh: AbstractMesh, spec: Iterable[Place]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def _free(x: jax.Array, taken: PartitionSpec) -> list[Place]:
    """Returns the sharding of x without the mesh axes already taken."""
    used = {axis for place in taken for axis in axes_of(place)}
    return [
        tuple(axis for axis in axes_of(place) if axis not in used) or None
        for place in jax.typeof(x).sharding.spec
    ]
