"""Compiled calls: one XLA program for each set of shapes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from . import packing

__all__ = ["compiled", "graphs"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, compiled: a module, a module's method such as `model.encode`, or a function.

    Arrays are arguments of the program; plain values such as `causal=True` are part of it. The module is split once, and again where a
    part of it was exchanged or its mode changed (train or eval), so that a call need not walk its graph as `nnx.jit` does, which takes a
    hundred times as long. Its variables are read at every call, and those that the call changes (rng counts) are written back. Where the
    module has `check_ids`, it is called before the program, which cannot raise; and where the call takes `packings`, they are prepared
    there, from the ids' values, unless a part is of another package, such as an adapter, which may need the rows.
    """
    owner = getattr(function, "__self__", function)
    module = owner if isinstance(owner, nnx.Module) else None
    name = "__call__" if function is module else getattr(function, "__name__", "")
    signature = inspect.signature(function)
    check_ids = getattr(owner, "check_ids", None)
    prepare = (
        _PREPARE.get(name)
        if hasattr(owner, "pack_from") and "packings" in signature.parameters
        else None
    )
    structures: list[Any] = []
    split = _split(module, structures)

    @functools.partial(jax.jit, static_argnums=(0, 3))
    def program(
        structure: int,
        before: list[Any],
        arrays: dict[str, Any],
        plain: tuple[tuple[str, Any], ...],
    ) -> tuple[Any, list[Any]]:
        graph, tree = structures[structure]
        merged = nnx.merge(graph, jax.tree.unflatten(tree, before))
        output = (function if module is None else getattr(merged, name))(**arrays, **dict(plain))
        after = jax.tree.leaves(nnx.state(merged))
        return output, [None if new is old else new for old, new in zip(before, after, strict=True)]

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal split
        arguments = {**signature.bind_partial(*args).arguments, **kwargs}
        if check_ids is not None:
            check_ids(**arguments)
        if not split.is_current():
            split = _split(module, structures)
        now = split
        if (
            prepare is not None
            and now.packs
            and "packings" not in arguments
            and packing.is_known(now.variables[0].get_raw_value())
        ):
            packings = prepare(owner, **arguments)
            arguments |= {"packings": packings} if any(packings) else {}
        arrays = {name: value for name, value in arguments.items() if _holds_arrays(value)}
        plain = tuple((name, value) for name, value in arguments.items() if name not in arrays)
        # A list of arrays: jit would walk the modules' state in Python at every call.
        output, changes = program(
            now.structure, [variable.get_raw_value() for variable in now.variables], arrays, plain
        )
        for variable, value in zip(now.variables, changes, strict=True):
            if value is not None:
                variable.set_raw_value(value)
        return output

    call.program = program  # type: ignore[attr-defined]  # for `graphs`
    return call


def graphs(*functions: Any) -> int:
    """How many XLA programs these functions of `jax.jit` or `compiled` have: one for each set of shapes, dtypes and plain values.

    JAX counts them under a private name alone.
    """
    return sum(getattr(function, "program", function)._cache_size() for function in functions)


class _Split(NamedTuple):
    """A module as its structure, by its number among those that programs are made for, and its variables."""

    structure: int
    variables: list[nnx.Variable[Any]]
    parts: list[tuple[dict[str, Any], str, Any]]  # every attribute, and where it was found
    packs: bool

    def is_current(self) -> bool:
        """Whether the module still has the same parts in the same places, and the same mode."""
        return all(attributes.get(name) is value for attributes, name, value in self.parts)


def _split(module: nnx.Module | None, structures: list[Any]) -> _Split:
    graph, state = nnx.split(module)
    structure = graph, jax.tree.structure(state)
    if structure not in structures:
        structures.append(structure)
    nodes = (
        []
        if module is None
        else [vars(node) for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Pytree)]
    )
    parts = [
        (node, name, value)
        for node in nodes
        for name, value in node.items()
        if not name.startswith("_pytree")
    ]
    return _Split(
        structures.index(structure),
        nnx.to_flat_state(state).leaves,
        parts,
        module is not None and packing.packs(module),
    )


_PREPARE = {"__call__": packing.of_forward, "training_loss": packing.of_loss}


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, Mapping) or any(
        isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(value)
    )
