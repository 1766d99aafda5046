"""What JAX asks for: devices and settings by name, arrays that are traced, and sharding as part of an array's type."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = ["device", "has_explicit_axes", "id_bounds", "is_traced", "settings", "take_rows"]

_PRECISION = {"cpu": "highest", "cuda": "highest", "cuda-tf32": "tensorfloat32"}


def device(name: str) -> jax.Device:
    """cpu, cuda, or cuda-tf32, whose float32 products are TF32. Raises ValueError on another name and where there is no such device."""
    if name not in _PRECISION:
        raise ValueError(f"device must be one of {', '.join(_PRECISION)}; got {name!r}")
    platform = name.removesuffix("-tf32")
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        raise ValueError(f"device {name} needs a {platform} backend; JAX has {jax.default_backend()}") from None


@contextlib.contextmanager
def settings(name: str, dtype: str) -> Iterator[None]:
    """New arrays are on the device of that name, products have its precision, and 64-bit types exist where the dtype is float64."""
    with jax.default_device(device(name)), jax.default_matmul_precision(_PRECISION[name]), jax.enable_x64(dtype == "float64"):
        yield


def is_traced(value: Any) -> bool:
    """Whether the value belongs to a program that is being traced, where it has a shape and a dtype but no elements to check."""
    return isinstance(value, jax.core.Tracer)


def id_bounds(ids: jax.Array) -> tuple[int, ...]:
    """The smallest and the largest id; () where they are traced, not integers, or none."""
    if is_traced(ids) or not ids.size or not jnp.issubdtype(ids.dtype, jnp.integer):
        return ()
    concrete = np.asarray(ids)
    return int(concrete.min()), int(concrete.max())


def has_explicit_axes(x: jax.Array) -> bool:
    """Whether the array lies on a mesh whose axes are explicit, as `jax.make_mesh` makes them: sharding is then part of its type."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def take_rows(table_vd: jax.Array, index: jax.Array, mode: str = "fill") -> jax.Array:
    """`table[index]`, `... d`; NaN for an index out of range, -1 among them, or with mode clip the nearest row.

    On explicit axes a gather is told how its result is sharded: as the index is, and in the last axis as the table.
    """
    sharding = None
    if has_explicit_axes(index):
        places = jax.typeof(index).sharding
        sharding = NamedSharding(places.mesh, PartitionSpec(*places.spec, jax.typeof(table_vd).sharding.spec[1]))
    return table_vd.at[index].get(mode=mode, wrap_negative_indices=False, out_sharding=sharding)
