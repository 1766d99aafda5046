"""Assembles a model inside a program: gathers parameters where they are used, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from flax import nnx

from ..embedding import Embedding, SegmentEmbedding
from ..positional_encoding import PositionEmbedding
from ..stacks import Decoder, Encoder
from .sharding import Sharding, mapped
from .split_experts import with_split_experts

__all__ = ["assembled"]

# Operations that only move numbers, such as gathers of parameters; their results are not saved.
MOVES = {
    "broadcast_in_dim", "convert_element_type", "reshape", "reshard", "sharding_constraint",
    "slice", "squeeze", "transpose",
}  # fmt: skip
TABLES = (Embedding, SegmentEmbedding, PositionEmbedding)
Policy = Callable[..., bool]
Module = TypeVar("Module", bound=nnx.Module)


def assembled(
    graph: nnx.GraphDef[Module],
    parameters: nnx.State,
    *rest: nnx.State,
    sharding: Sharding | None = None,
    recompute: bool = False,
    apart: bool = True,
) -> Module:
    """`nnx.merge`, for use inside a program.

    With sharding, each parameter is gathered where it is used: those of a layer when it runs,
    forward and backward, all others at the start. recompute: layers save only their inputs.
    apart=False: treats parameters of layers like all others.
    """
    changed = sharding is not None or recompute
    found = nnx.merge(graph, parameters, *rest, copy=changed)
    if not changed:
        return found
    stacks = {
        ".".join((*map(str, path), "layers")).strip("."): node
        for path, node in nnx.iter_graph(found)
        if apart and isinstance(node, Encoder | Decoder)
    }
    if sharding is not None:
        inside = tuple(f"{path}." for path in stacks)
        used = mapped(
            lambda name, x: x if inside and name.startswith(inside) else sharding.used(name, x),
            parameters,
        )
        nnx.update(found, used)
        found = with_split_experts(_with_tables(found, sharding), sharding)
    policy: Policy | None = jax.checkpoint_policies.nothing_saveable if recompute else _computed
    if not recompute and not (sharding and sharding.gathers):
        policy = None
    for path, stack in stacks.items():
        layers: Any = [
            Apart(layer, f"{path}.{index}.", sharding, policy)
            for index, layer in enumerate(stack.layers)
        ]
        stack.layers = nnx.List(layers)
    return found


def _with_tables(module: nnx.Module, sharding: Sharding) -> Any:
    """Replaces the tables of a module by `Table`; wraps a table itself."""
    if isinstance(module, TABLES):
        return Table(module, sharding)
    for name, part in list(vars(module).items()):
        if isinstance(part, TABLES):
            setattr(module, name, Table(part, sharding))
    return module


def _computed(primitive: Any, *_: object, **__: object) -> bool:
    """Whether a result is saved for the backward pass: unless it only moves numbers."""
    return primitive.name not in MOVES


class Table(nnx.Module):
    """A table that is read with rows padded by ids 0 to divide evenly; returns the real rows.

    XLA miscomputes the gradient of a table read by uneven parts of rows: row 0 gets the values
    behind the last row.
    """

    def __init__(
        self, inner: Embedding | SegmentEmbedding | PositionEmbedding, sharding: Sharding
    ) -> None:
        self.inner, self.sharding = inner, sharding

    def __call__(self, *args: jax.Array, **kwargs: jax.Array) -> jax.Array:
        (token,) = *args, *kwargs.values()  # each table names its argument differently
        return self.inner(self.sharding.filled(token))[: len(token)]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Apart(nnx.Module):
    """A layer whose parameters are gathered when it runs, not earlier.

    start: prefix of their names. policy: for `jax.checkpoint`, which then differentiates the layer
    on its own.
    """

    def __init__(
        self, layer: nnx.Module, start: str, sharding: Sharding | None, policy: Policy | None
    ) -> None:
        self.layer, self.start, self.sharding, self.policy = layer, start, sharding, policy

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        graph, parameters, *rest = nnx.split(self.layer, nnx.Param, ...)
        sharding, routed = self.sharding, kwargs.pop("routed", None)

        def call(
            parameters: nnx.State, rest: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
        ) -> tuple[jax.Array, nnx.State, list[jax.Array]]:
            if sharding is not None:
                args = (sharding.put(args[0], "data"), *args[1:])
                parameters = mapped(lambda name, x: sharding.used(self.start + name, x), parameters)
            layer = nnx.merge(graph, parameters, *rest)
            logits: list[jax.Array] = []  # a result, since `jax.checkpoint` copies arguments
            output = layer(*args, **kwargs, **({} if routed is None else {"routed": logits}))
            if sharding is not None:
                output = sharding.put(output, "data")
            return output, nnx.state(layer, nnx.RngCount), logits

        run = jax.checkpoint(call, policy=self.policy) if self.policy else call
        output, counts, logits = run(parameters, rest, args, kwargs)
        nnx.update(self.layer, counts)
        if routed is not None:
            routed.extend(logits)
        return output
