"""Runs a component of the port on a mesh for the judge."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reference_numpy import parameters as canonical

from .assembly import assembled
from .sharding import Sharding, fetched, mapped, named
from .split_experts import with_split_experts

__all__ = ["answer", "owner"]

Result = TypeVar("Result")
Tree = Mapping[str, Any]


def answer(
    built: Callable[..., Result],
    inputs: Tree,
    parameters: Mapping[str, np.ndarray],
    sharding: Sharding,
    given: Callable[[Tree], Tree] = dict,
) -> Result | dict[str, np.ndarray]:
    """Returns the component's outputs as whole NumPy arrays; with an input `cotangent`, the
    gradients of every input and parameter of its product with the first output.

    built: a module, a module's method, a function, or a `partial` whose first argument is a module,
    which compiles itself. inputs: nested or flat; arrays with as many rows as the first one are
    split over data. given: maps inputs to the call's arguments.
    """
    flat = canonical.flatten(inputs)
    if isinstance(built, partial) and isinstance(owner(built), nnx.Module):
        return _by_itself(built, flat, parameters, sharding)
    cotangent = flat.pop("cotangent", None)
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in flat.items() if name not in arrays}
    rows = next((len(x) for x in arrays.values() if x.ndim), 0)
    spread = {name for name, x in arrays.items() if x.ndim and len(x) == rows}
    placed = {
        name: sharding.batch(x) if name in spread else sharding.constant(x)
        for name, x in arrays.items()
    }
    empty, call = _call(built, sharding)

    def forward(state: nnx.State, real: dict[str, jax.Array]) -> Result:
        return call(state, given(canonical.nest(plain | real)))

    def run(state: nnx.State, placed: dict[str, jax.Array], cotangent: Any) -> Any:
        real = {name: sharding.rows(x, rows) if name in spread else x for name, x in placed.items()}
        if cotangent is None:
            return jax.tree.map(sharding.put, forward(state, real))
        floating = {name: x for name, x in real.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        output, back = jax.vjp(
            lambda state, floating: jax.tree.leaves(forward(state, real | floating))[0],
            state,
            floating,
        )
        cotangent = sharding.put(cotangent.astype(output.dtype))
        if sharding.explicit:
            cotangent = jax.sharding.reshard(cotangent, jax.typeof(output).sharding)
        of_state, of_inputs = back(cotangent)
        return of_state, jax.tree.map(sharding.put, of_inputs)

    state = sharding.state(empty, parameters.__getitem__)
    cotangent = None if cotangent is None else sharding.constant(np.asarray(cotangent))
    found = jax.jit(run)(state, placed, cotangent)
    if cotangent is None:
        return jax.tree.map(fetched, found)
    of_state = named(found[0])
    gradients = {f"parameters.{name}": sharding.whole(name, of_state[name]) for name in parameters}
    return jax.tree.map(fetched, found[1]) | gradients


def _by_itself(
    built: partial[Result], flat: Tree, parameters: Mapping[str, np.ndarray], sharding: Sharding
) -> Result:
    """Runs a function that compiles its own programs of a module."""
    graph, empty, *rest = nnx.split(owner(built), nnx.Param, ...)
    state = mapped(sharding.alone, sharding.state(empty, parameters.__getitem__))
    model = with_split_experts(nnx.merge(graph, state, *rest), sharding)
    model.eval()
    found = built.func(model, **built.keywords, **canonical.nest(flat))
    return jax.tree.map(fetched, found)


def owner(built: Callable[..., Result]) -> Any:
    """Returns the module of a callable, or the callable itself."""
    first = built.args[:1] if isinstance(built, partial) else ()
    return first[0] if first else getattr(built, "__self__", built)


def _call(
    built: Callable[..., Result], sharding: Sharding
) -> tuple[nnx.State, Callable[[nnx.State, Tree], Result]]:
    """Returns the callable's parameters, without values, and its call with them and inputs."""
    module = owner(built)
    if not isinstance(module, nnx.Module):
        return nnx.State({}), lambda _, inputs: built(**inputs)
    module.eval()
    graph, empty, *rest = nnx.split(module, nnx.Param, ...)
    name = "__call__" if built is module else built.__name__

    def call(state: nnx.State, inputs: Tree) -> Result:
        apart = name != "states"  # states calls the parts of a layer
        model = assembled(graph, state, *rest, sharding=sharding, apart=apart)
        return getattr(model, name)(**inputs)

    return empty, call
