"""Checks what a port must leave unchanged: the arrays that it was given, the arrays that it returned, and the state that a process shares.

Only frameworks that are loaded are looked at; nothing is imported for it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..case import Case

Remembered = tuple[str, np.ndarray, np.ndarray]  # its description, the array, a copy of it
State = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # description -> how the state is read, how it is restored


class SideEffects:
    """Watches a port from answer to answer, and says in words what it changed that it must not change."""

    def __init__(self) -> None:
        self._returned: list[Remembered] = []
        self._changed: list[str] = []

    @contextlib.contextmanager
    def over(self, case: Case) -> Iterator[list[str]]:
        """Watches while the port answers the case; yields a list that holds everything that it changed when the block has ended.

        Shared state is restored, so that no other case suffers.
        """
        arrays = {"input": case.inputs, "parameter": case.parameters}
        given = _remember({f"its {kind} {name}": value for kind, values in arrays.items() for name, value in values.items()})
        shared = {name: read() for name, (read, _) in _shared().items()}
        modules = len(sys.modules)
        problems: list[str] = []
        try:
            yield problems
        finally:
            problems += [f"the port changed {name} in place" for name in _changed(given)]
            problems += [f"the port changed {name} after it had returned it" for name in self._changed]
            disturbed = _restore(shared)
            # Some packages draw global random numbers while they are imported, once, which is not the port's doing.
            problems += disturbed if len(sys.modules) == modules else []
            self._changed = []

    def returned(self, case: Case, outputs: Mapping[str, Any]) -> None:
        """Remembers what the port returned; what it returned before must be unchanged."""
        self._changed += _changed(self._returned)
        self._returned = _remember({f"the array {name} of {case.id}": value for name, value in outputs.items()})


def _remember(arrays: Mapping[str, Any]) -> list[Remembered]:
    return [(name, value, value.copy()) for name, value in arrays.items() if isinstance(value, np.ndarray)]


def _changed(arrays: list[Remembered]) -> list[str]:
    return [name for name, value, copy in arrays if value.shape != copy.shape or value.tobytes() != copy.tobytes()]


def _restore(shared: Mapping[str, Any]) -> list[str]:
    """Restores the shared state; returns what of it had changed, in words."""
    problems = []
    for name, (read, restore) in _shared().items():
        before, now = shared.get(name), read()
        if before is not None and not _equal(before, now):
            problems.append(f"the port changed {name}" + ("" if isinstance(before, tuple) else f" from {before} to {now}"))
            restore(before)
    return problems


def _equal(first: Any, second: Any) -> bool:
    """Whether two states are equal; they may be nested tuples of numbers and arrays."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return np.array_equal(first, second)


def _shared() -> State:
    """Returns the state that a process shares, of the loaded modules: states of random generators, default dtypes."""
    states: State = {}
    if numpy := sys.modules.get("numpy.random"):
        states["NumPy's global random state"] = (numpy.get_state, numpy.set_state)
    # Keras draws the seeds of its initialisers from Python's generator whenever a layer is built.
    if (python := sys.modules.get("random")) and "keras" not in sys.modules:
        states["Python's global random state"] = (python.getstate, python.setstate)
    # Building a torch module draws its first parameters from the global generator; only another seed is a change of it.
    if torch := sys.modules.get("torch"):
        states["the seed of torch's global random state"] = (torch.initial_seed, torch.manual_seed)
        states["torch's default dtype"] = (torch.get_default_dtype, torch.set_default_dtype)
    if keras := sys.modules.get("keras"):
        states["Keras's floatx"] = (keras.config.floatx, keras.config.set_floatx)
        states["Keras's dtype policy"] = (lambda: keras.config.dtype_policy().name, keras.config.set_dtype_policy)
    if jax := sys.modules.get("jax"):
        states["jax_enable_x64"] = (lambda: jax.config.jax_enable_x64, lambda value: jax.config.update("jax_enable_x64", value))
    return states
