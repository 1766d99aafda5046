"""Matches a model with the reference: submodules by path, and their inputs by shape."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import layout

from ...case import Case
from ..names import Names
from ..port import SKIP, NotCovered
from .call_mapping import CallMapping

RARE = {"bias_bhts": "a bias", SKIP: "this option"}  # other rare inputs -> their names in messages


def submodules(
    find: Callable[[str], Any], paths: Iterable[str], case: Case, names: Names, table: layout.Table
) -> dict[str, Any]:  # fmt: skip
    """Returns the model's submodules that implement components, by canonical path.

    find: returns the submodule at one of the port's paths, or None. paths: of the reference's
    calls, in order. table: with complete names. A component whose step `names` drops is inlined in
    its parent and has no module. A module that also holds parameters of other components, such as a
    sub-layer with its norm, does not count.
    """
    found = {}
    component = case.component
    for path in paths:
        native, around = names.path(component, path), path.rpartition(".")[0]
        dropped = native == (around and names.path(component, around))
        module = None if dropped or _is_more(native, path, table) else find(native)
        if module is None and path == "target_embedding" and case.config.share_embeddings:
            module = find(names.path(component, "source_embedding"))
        if module is not None:
            found[path] = module
    return found


def assign(own: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> list[int | None] | None:
    """Returns which of the reference's inputs each module input is; None for others.

    Inputs match in order, if they have the same kind of number and the same shape, or the same with
    the first two axes swapped. If all inputs of a shape are assigned, a further one repeats the
    last (key and value are both the memory). Returns None if an input of the reference matches
    none.
    """
    chosen: list[int | None] = []
    for array in own:
        fitting = [i for i, other in enumerate(wanted) if _kind(other) == _kind(array) and array.shape in _shapes(other)]
        fresh = [i for i in fitting if i not in chosen]
        chosen.append(fresh[0] if fresh else fitting[-1] if fitting else None)
    placed = [wanted[i] for i in chosen if i is not None]
    lost = [array for array in wanted if not any(np.array_equal(array, other) for other in placed)]
    return None if lost or not placed else chosen


def _is_more(native: str, path: str, table: layout.Table) -> bool:
    """Whether the module also holds parameters outside the component at the canonical path."""
    within = {own for name, own, _ in table if own.startswith(f"{native}.")}
    return bool(native) and bool(within - {own for name, own, _ in table if name.startswith(f"{path}.")})


def is_less(own: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    """Whether a module is only part of its component: its inputs have fewer axes and elements."""
    return bool(own and wanted) and all(array.ndim < other.ndim and array.size < other.size for array in own for other in wanted)


def transposed(array: Any, shape: tuple[int, ...]) -> Any:
    """Returns the array, with its first two axes swapped if that gives the shape."""
    if not isinstance(array, np.ndarray) or array.shape == shape or array.ndim < 2 or array.swapaxes(0, 1).shape != shape:
        return array
    return np.ascontiguousarray(array.swapaxes(0, 1))


def found(table: layout.Table, has: Callable[[str], bool], names: Callable[[], Sequence[str]]) -> layout.Table:
    """Returns the table with the module's names: a missing name becomes a longer one with its steps.

    If no name or several names match, the name stays as it is.
    """
    if all(has(native) for _, native, _ in table):
        return table
    every = names()
    return tuple((name, native if has(native) else _longer(native, every), axes) for name, native, axes in table)


def _longer(name: str, names: Sequence[str]) -> str:
    """Returns the only longer name that starts and ends with this name's steps, or this name."""
    steps = name.split(".")
    ways = [("".join(f"{step}." for step in steps[:at]), "." + ".".join(steps[at:])) for at in range(len(steps))]
    fitting = [one for one in names if any(f".{one}".startswith(f".{start}") and one.endswith(end) for start, end in ways)]
    fitting = [one for one in fitting if len(one.split(".")) > len(steps)]
    return fitting[0] if len(fitting) == 1 else name


def _shapes(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    shape = array.shape
    return (shape, (shape[1], shape[0], *shape[2:])) if len(shape) > 1 else (shape,)


def _kind(array: np.ndarray) -> str:
    return "f" if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else "i"


def owner(built: Any) -> Any:
    """Returns the module of a bound method or partial function; otherwise the object."""
    if isinstance(built, CallMapping):
        return owner(built.function)
    if isinstance(built, functools.partial) and built.args:
        return owner(built.args[0])
    return built.__self__ if inspect.ismethod(built) else built


def of_other(function: Any, module: Any) -> Any:
    """Returns the module, method or partial function rebound to another module of its kind."""
    if isinstance(function, CallMapping):
        return dataclasses.replace(function, function=of_other(function.function, module))
    if isinstance(function, functools.partial):
        return functools.partial(function.func, of_other(function.args[0], module), *function.args[1:], **function.keywords)
    return getattr(module, function.__name__) if inspect.ismethod(function) else module


def compiles_itself(function: Callable[..., Any]) -> bool:
    """Whether the function compiles its own parts: it has an argument `compiled`."""
    try:
        return "compiled" in inspect.signature(function).parameters
    except ValueError:  # functions written in C may have no signature
        return False


def refuse_rare(call: Callable[..., Any], inputs: Mapping[str, Any]) -> None:
    """Raises NotCovered if the call does not take a keep mask, bias or `skip_padding`."""
    given = [name for name, value in inputs.items() if (name.startswith("keep") or name in RARE) and value is not None]
    accepted = inspect.signature(call).parameters if given else {}
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    if missing := [name for name in given if name not in accepted and not anything]:
        what = RARE.get(missing[0], "keep masks")
        raise NotCovered(f"{getattr(call, '__qualname__', type(call).__name__)} does not take {what}: it has no argument {missing[0]}")
