"""Compiled calls: one XLA program for each set of shapes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from . import packing

__all__ = ["compiled", "graphs"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, compiled: a module, a module's method such as `model.encode`, or a function.

    Arrays are arguments of the program; plain values such as `causal=True` are part of it. The module is split here, once, so that a call
    need not walk its graph as `nnx.jit` does: its structure and mode (train or eval) are those of this moment, but its variables are
    read at every call, and those that the call changes (rng counts) are written back. Where the module has `check_ids`, it is called
    before the program, which cannot raise; and where the call takes `packings`, they are prepared there, from the ids' values.
    """
    owner = getattr(function, "__self__", function)
    module = owner if isinstance(owner, nnx.Module) else None
    name = "__call__" if function is module else getattr(function, "__name__", "")
    signature = inspect.signature(function)
    graph, state = nnx.split(module)
    variables, structure = nnx.to_flat_state(state).leaves, jax.tree.structure(state)
    check_ids = getattr(owner, "check_ids", None)
    prepare = _PREPARE.get(name) if hasattr(owner, "pack_from") and "packings" in signature.parameters else None

    @functools.partial(jax.jit, static_argnums=2)
    def program(before: list[Any], arrays: dict[str, Any], plain: tuple[tuple[str, Any], ...]) -> tuple[Any, list[Any]]:
        merged = nnx.merge(graph, jax.tree.unflatten(structure, before))
        output = (function if module is None else getattr(merged, name))(**arrays, **dict(plain))
        after = jax.tree.leaves(nnx.state(merged))
        return output, [None if new is old else new for old, new in zip(before, after, strict=True)]

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = {**signature.bind_partial(*args).arguments, **kwargs}
        if check_ids is not None:
            check_ids(**arguments)
        if prepare is not None and "packings" not in arguments and packing.is_known(variables[0].get_raw_value()):
            packings = prepare(owner, **arguments)
            arguments |= {"packings": packings} if any(packings) else {}
        arrays = {name: value for name, value in arguments.items() if _holds_arrays(value)}
        plain = tuple((name, value) for name, value in arguments.items() if name not in arrays)
        # A list of arrays: jit would walk the modules' state in Python at every call.
        output, changes = program([variable.get_raw_value() for variable in variables], arrays, plain)
        for variable, value in zip(variables, changes, strict=True):
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


_PREPARE = {"__call__": packing.of_forward, "training_loss": packing.of_loss}


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, Mapping) or any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(value))
