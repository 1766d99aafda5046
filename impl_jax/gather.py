"""Rows of a table, on every mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = ["has_explicit_axes", "rows"]


def has_explicit_axes(x: jax.Array) -> bool:
    """Whether the array lies on a mesh whose axes are explicit, as `jax.make_mesh` makes them: sharding is then part of its type."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def rows(table_vd: jax.Array, index: jax.Array, mode: str = "fill") -> jax.Array:
    """`table[index]`, `... d`; for an index that is none NaN, or with mode clip the nearest row.

    On explicit axes a gather is told how its result is sharded: as the index is, and in the last axis as the table.
    """
    if not has_explicit_axes(index):
        return jnp.take(table_vd, index, axis=0, mode=mode)
    places = jax.typeof(index).sharding
    spec = PartitionSpec(*places.spec, jax.typeof(table_vd).sharding.spec[1])
    return table_vd.at[index].get(mode=mode, out_sharding=NamedSharding(places.mesh, spec))
