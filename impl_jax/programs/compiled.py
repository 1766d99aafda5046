"""Compiled calls: one XLA program per set of shapes."""

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.tree_util import PyTreeDef

from .unpadding import LEAST, Driver, Flat, driver, is_known

__all__ = ["compiled"]

Result = TypeVar("Result")
Structure = tuple[nnx.GraphDef[nnx.Module | None], PyTreeDef, Driver | None]


def compiled(function: Callable[..., Result], least: int = LEAST) -> Callable[..., Result]:
    """Compiles a module, a module's method such as `model.encode`, or a function.

    Arrays are arguments of the program; plain values such as `causal=True` are constants. The
    module is split once, and again if one of its parts is replaced or its mode changes: walking its
    graph in every call, as `nnx.jit` does, takes a hundred times as long. Variables are read in
    every call, and those that it changes (rng counts) are written back. `check_ids` of the module,
    if any, runs before the program, which cannot raise. A Transformer and its `training_loss` skip
    padding, as `unpadded` does.
    """
    owner: Any = getattr(function, "__self__", function)
    module = owner if isinstance(owner, nnx.Module) else None
    name = "__call__" if function is module else getattr(function, "__name__", "")
    signature, check_ids = inspect.signature(function), getattr(owner, "check_ids", None)
    structures: list[Structure] = []
    split = _split(module, function, structures)

    @functools.partial(jax.jit, static_argnames=("structure", "plain"))
    def program(
        structure: int,
        before: list[jax.Array],
        flat: Flat,
        arrays: dict[str, Any],
        plain: tuple[tuple[str, Any], ...],
    ) -> tuple[Result, list[jax.Array | None]]:
        graph, tree, driver = structures[structure]
        merged = nnx.merge(graph, jax.tree.unflatten(tree, before))
        called = function if module is None else getattr(merged, name)
        if driver is not None:
            called = functools.partial(driver.run, merged, flat)
        output = called(**arrays, **dict(plain))
        after = jax.tree.leaves(nnx.state(merged))
        return output, [None if new is old else new for old, new in zip(before, after, strict=True)]

    def call(*args: Any, **kwargs: Any) -> Result:
        nonlocal split
        arguments = {**signature.bind_partial(*args).arguments, **kwargs}
        if check_ids is not None:
            check_ids(**arguments)
        if not split.is_current():
            split = _split(module, function, structures)
        now, flat = split, Flat()
        # As a list, since jit would walk the modules' state in Python in every call.
        before = [variable.get_raw_value() for variable in now.variables]
        if now.driver is not None and is_known(before[0]):
            flat = now.driver.tokens(owner.config, least, **arguments)
        arrays = {name: value for name, value in arguments.items() if _holds_arrays(value)}
        plain = tuple((name, value) for name, value in arguments.items() if name not in arrays)
        output, changes = program(now.structure, before, flat, arrays, plain)
        for variable, value in zip(now.variables, changes, strict=True):
            if value is not None:
                variable.set_raw_value(value)
        return output

    call.program = program  # type: ignore[attr-defined]  # has the XLA programs
    return call


class _Split(NamedTuple):
    """A module as its variables and the number of its structure, which selects programs."""

    structure: int
    variables: list[nnx.Variable[jax.Array]]
    parts: list[dict[str, Any]]  # the attributes of every part
    values: list[Any]  # and their values
    driver: Driver | None

    def is_current(self) -> bool:
        """Whether the module still has the same parts in the same places, and the same mode."""
        values = [*itertools.chain.from_iterable(map(dict.values, self.parts))]
        return len(values) == len(self.values) and all(map(operator.is_, values, self.values))


def _split(
    module: nnx.Module | None, function: Callable[..., Result], structures: list[Structure]
) -> _Split:
    graph, state = nnx.split(module)
    structure = graph, jax.tree.structure(state), driver(function)
    if structure not in structures:
        structures.append(structure)
    found = [] if module is None else [node for _, node in nnx.iter_graph(module)]
    parts = [vars(node) for node in found if isinstance(node, nnx.Pytree)]
    values = [value for attributes in parts for value in attributes.values()]
    variables = nnx.to_flat_state(state).leaves
    return _Split(structures.index(structure), variables, parts, values, structure[-1])


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, jax.Array | Mapping):
        return True
    return any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(value))
