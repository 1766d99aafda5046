"""Mixtures of experts on a mesh: a device computes its own experts for its rows; sums are added."""

from typing import Any, TypeVar

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from ..experts import MixtureOfExperts
from ..feed_forward import FeedForward
from ..kernels.experts import in_groups
from .sharding import Sharding

__all__ = ["SplitExperts", "with_split_experts"]

Module = TypeVar("Module", bound=nnx.Module)


class SplitExperts(MixtureOfExperts):
    """A mixture whose router every device computes for its rows."""

    sharding: Sharding

    def weighted_sum(self, x_btd: jax.Array, weight_btx: jax.Array) -> jax.Array:
        place, rows = self.sharding, len(x_btd)
        x_btd, weight_btx = map(place.filled, (x_btd, weight_btx))
        (over_data,) = place.divided(x_btd.shape[:1], ("data",))

        def of_device(experts: FeedForward, x_btd: jax.Array, weight_btx: jax.Array) -> jax.Array:
            y_btd = in_groups(self.weighted, experts, x_btd, weight_btx, self.per_token)
            return jax.lax.psum(y_btd, "model")

        specs = ("model",), (over_data,), (over_data, None, "model")
        y_btd = jax.shard_map(
            of_device,
            mesh=place.mesh,
            in_specs=tuple(PartitionSpec(*spec) for spec in specs),
            out_specs=PartitionSpec(over_data),
            check_vma=False,  # loops begin with zeros, which are the same everywhere
        )(
            jax.tree.map(lambda array: place.put(array, *specs[0]), self.experts),
            place.put(x_btd, *specs[1]),
            place.put(weight_btx, *specs[2]),
        )
        return y_btd[:rows]


def with_split_experts(module: Module, sharding: Sharding) -> Module:
    """Returns the module; its mixtures of experts then run on the mesh."""
    parts = [part for _, part in nnx.iter_graph(module) if isinstance(part, MixtureOfExperts)]
    mixtures: list[Any] = parts  # which become SplitExperts
    for part in mixtures:
        part.__class__, part.sharding = SplitExperts, sharding
    return module
