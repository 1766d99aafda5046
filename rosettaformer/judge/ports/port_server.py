"""The process of one port: `python -m rosettaformer.judge.ports.port_server PORT`.

A question is a method name of `Port` with its arguments; an answer is a pair of kind (outputs,
differs, error, not covered, unsupported, skipped) and content (`messages`).

The process also checks what a port must not change: the arrays it was given, the arrays it
returned, and the global state of loaded frameworks. It imports nothing for these checks.
"""

import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy.fields import SeveralValues

from ...common.extras import MissingBackend
from ...common.processes import Answer, serve, wire
from ...common.processes.serving import Reply
from ...common.processes.text import innermost, message, plain, words
from ..case import Case
from ..expectation import statistics
from ..expectation.components import named_outputs
from ..status import Kind
from .messages import asked
from .port import NotCovered, NotLoaded, NotShown, Port, Unsupported
from .signature import hint

Remembered = tuple[str, np.ndarray, np.ndarray]  # description, array, copy
State = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  # description -> (read, restore)


class SideEffects:
    """Detects changes to the port's arguments, to returned arrays, and to global state."""

    def __init__(self) -> None:
        self._returned: list[Remembered] = []
        self._changed: list[str] = []

    @contextlib.contextmanager
    def over(self, case: Case) -> Iterator[list[str]]:
        """Watches one evaluation. After the block, the yielded list has the forbidden changes.

        Restores global state, so that later cases are not affected.
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
            # Some packages draw global random numbers at import: not the port's fault.
            problems += disturbed if len(sys.modules) == modules else []
            self._changed = []

    def returned(self, case: Case, outputs: Mapping[str, Any]) -> None:
        """Remembers returned arrays. Arrays returned earlier must be unchanged."""
        self._changed += _changed(self._returned)
        self._returned = _remember({f"the array {name} of {case.id}": value for name, value in outputs.items()})


def _remember(arrays: Mapping[str, Any]) -> list[Remembered]:
    return [(name, value, value.copy()) for name, value in arrays.items() if isinstance(value, np.ndarray)]


def _changed(arrays: list[Remembered]) -> list[str]:
    return [name for name, value, copy in arrays if value.shape != copy.shape or value.tobytes() != copy.tobytes()]


def _restore(shared: Mapping[str, Any]) -> list[str]:
    """Restores global state and returns the changes, as text."""
    problems = []
    for name, (read, restore) in _shared().items():
        before, now = shared.get(name), read()
        if before is not None and not _equal(before, now):
            problems.append(f"the port changed {name}" + ("" if isinstance(before, tuple) else f" from {before} to {now}"))
            restore(before)
    return problems


def _equal(first: Any, second: Any) -> bool:
    """Whether two states, possibly nested tuples of numbers and arrays, are equal."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return np.array_equal(first, second)


def _shared() -> State:
    """Returns the global state of the loaded modules: random generators and default dtypes."""
    states: State = {}
    if numpy := sys.modules.get("numpy.random"):
        states["NumPy's global random state"] = (numpy.get_state, numpy.set_state)
    # Keras draws its initializers' seeds from Python's generator when a layer is built.
    if (python := sys.modules.get("random")) and "keras" not in sys.modules:
        states["Python's global random state"] = (python.getstate, python.setstate)
    # Building a torch module draws from the global generator, so only the seed is compared.
    if torch := sys.modules.get("torch"):
        states["the seed of torch's global random state"] = (torch.initial_seed, torch.manual_seed)
        states["torch's default dtype"] = (torch.get_default_dtype, torch.set_default_dtype)
    if keras := sys.modules.get("keras"):
        states["Keras's floatx"] = (keras.config.floatx, keras.config.set_floatx)
        states["Keras's dtype policy"] = (lambda: keras.config.dtype_policy().name, keras.config.set_dtype_policy)
    if jax := sys.modules.get("jax"):
        states["jax_enable_x64"] = (lambda: jax.config.jax_enable_x64, lambda value: jax.config.update("jax_enable_x64", value))
    return states


FEW = 6  # the most parts of a tuple that an error describes
UNEQUAL = "two evaluations of the same input differ: something random, such as dropout, is active in evaluation mode"


class _Wrong(Exception):
    """The port did not return arrays. The message says what is required and what it returned."""


def reply(port: Port, effects: SideEffects, method: str, *sent: Any) -> Answer:
    """Returns the port's answer, or why there is none."""
    arguments: list[Any] = []
    try:
        arguments = asked(sent)
        return _answer(port, effects, *arguments) if method == "answer" else (Kind.OUTPUTS, getattr(port, method)(*arguments))
    except (NotCovered, SeveralValues) as error:
        return Kind.NOT_COVERED, message(innermost(error))
    except NotShown as error:
        return Kind.NOT_SHOWN, message(error)
    except Unsupported as error:
        return Kind.UNSUPPORTED, message(error)
    except NotLoaded as error:
        return Kind.SKIPPED, message(error)
    except _Wrong as error:
        return Kind.DIFFERS, message(error)
    except BaseException as error:  # SystemExit and other subclasses of BaseException
        file = getattr(port.module, "__file__", None) or ""
        return Kind.ERROR, _in_words(error, file) + (hint(error, port.module, arguments[0]) if arguments else "")


def _answer(port: Port, effects: SideEffects, case: Case) -> Answer:
    """Returns a case's outputs, evaluated once or twice; or the port's forbidden changes."""
    with effects.over(case) as problems:
        first = _evaluate(port, effects, case)
        second = _evaluate(port, effects, case) if case.twice else first
    if problems:
        return Kind.ERROR, "; ".join(problems)
    return (Kind.OUTPUTS, first) if equal(first, second) else (Kind.ERROR, UNEQUAL)


def equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Whether two answers are equal bit for bit."""
    return first.keys() == second.keys() and all(first[name].tobytes() == second[name].tobytes() for name in first)


def _evaluate(port: Port, effects: SideEffects, case: Case) -> dict[str, np.ndarray]:
    """Returns copies of the outputs, or their statistics. Raises _Wrong for anything else."""
    result = port.answer(case)
    if isinstance(result, tuple) and len(result) != 2:
        raise _Wrong(f"must return an array, a mapping of arrays, or a pair (output, weights); got {_tuple(result, case.component)}")
    outputs = {_name(name): value for name, value in named_outputs(result).items()}
    for name, value in outputs.items():
        if not wire.is_array(value):
            raise _Wrong(f"{name}: must be a NumPy array of numbers; got {wire.named(value)}")
    arrays = case.part({name: wire.base(value) for name, value in outputs.items()})
    size = sum(array.nbytes for array in arrays.values())
    most = wire.answer_limit(case.size)
    if size > most:
        raise _Wrong(f"must return arrays of at most {most} bytes; got {size}")
    effects.returned(case, arrays)
    return statistics.measured(case.component, case.inputs, {name: np.array(array) for name, array in arrays.items()})


def _tuple(result: tuple[Any, ...], component: str) -> str:
    """Describes the tuple that a port returned, and how its file can select one element."""
    parts = ", ".join(str(wire.base(item).shape) if wire.is_array(item) else wire.named(item) for item in result[:FEW])
    row = f'call = {{"{component}": {{..., "return": lambda output, inputs: output[0]}}}}'
    return f"a tuple of {len(result)}: {parts}{', ...' if len(result) > FEW else ''}. To select an element, write in the port file: {row}"


def _name(name: Any) -> str:
    if not issubclass(type(name), str):
        raise _Wrong(f"names of outputs must be str; got {type(name).__name__}")
    return plain(name)


def _in_words(error: BaseException, file: str) -> str:
    """Describes the error, with its last line in the folder of the port's file."""
    folder = os.path.join(os.path.dirname(os.path.realpath(file)), "")
    lines = traceback.extract_tb(sys.exc_info()[2])
    own = [line for line in lines if file and os.path.realpath(line.filename).startswith(folder)]
    return words(error) + (f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else "")


def _start(name: str) -> tuple[Answer, Reply | None]:
    """Loads the port. Returns the handshake, and the function that answers questions."""
    try:
        port = Port(name)
        effects, about = SideEffects(), port.describe()
        gc.freeze()  # excludes the framework's objects from garbage collection, which can take a tenth of the time
        return (Kind.READY, about), lambda *question: reply(port, effects, *question)
    except MissingBackend as error:
        return (Kind.MISSING, message(error)), None
    except BaseException as error:
        return (Kind.ERROR, _in_words(error, name if name.endswith(".py") else "")), None


if __name__ == "__main__":
    serve(lambda: _start(sys.argv[1]))
