"""Messages between the judge and a port's process, as plain data.

A question is a method name of `Port` with its arguments; an answer is a pair of kind and content.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh

from ...common.processes import Answer
from ..case import DTYPES, Case
from ..expectation.components import ASKED
from ..status import Kind, Status

START = "start"  # the method whose answer is the handshake
OTHERS = (Kind.ERROR, Kind.NOT_COVERED, Kind.NOT_SHOWN, Kind.UNSUPPORTED)  # kinds that any method may answer, with a text as the reason
REASONS = {START: (Kind.MISSING, Kind.ERROR), "answer": (*OTHERS, Kind.DIFFERS, Kind.SKIPPED)}
SHOWN = (Status.DIFFERS, Status.TOLD, Status.NOT_SHOWN)  # of findings about an exported model that need no run
ABOUT: Mapping[str, Callable[[Any], bool]] = {
    "framework": lambda value: type(value) is str,
    "loaded": lambda value: type(value) is str,
    "modes": lambda value: _is_names(value) and bool(value),
    "config": lambda value: _is_mapping(value, _is_value),
    "suite": lambda value: type(value) is int,
    "dtypes": lambda value: _is_names(value) and {*value} <= {*DTYPES},
    "components": lambda value: _is_names(value) and {*value} <= {*ASKED},
    "shared": lambda value: _is_names(value),
    "version": lambda value: _is_mapping(value, lambda item: type(item) is str),
    "devices": lambda value: _is_names(value),
    "precision": lambda value: type(value) is str,
    "on_mesh": lambda value: type(value) is bool,
    "processes": lambda value: type(value) is bool,
    "whole": lambda value: type(value) is bool,
    "limits": lambda value: _is_mapping(value, _is_value),
    "artefact": lambda value: type(value) is bool,
    "findings": lambda value: _is_mapping(value, lambda item: _is_names(item) and len(item) == 2 and item[0] in SHOWN),
    "fixed": lambda value: _is_mapping(value, lambda item: type(item) is int),
    "ids": lambda value: _is_mapping(value, lambda item: type(item) is str),
}
NEEDED = ("modes", "config", "dtypes", "components")


class Force(NamedTuple):
    """A component to run teacher-forced: its canonical path, and the inputs to run it on.

    cotangent: if not None, the gradient of sum(cotangent * output) is returned too.
    """

    path: str
    inputs: list[np.ndarray]
    cotangent: np.ndarray | None = None


def plain(arguments: Sequence[Any], has_weights: bool = False) -> list[Any]:
    """Converts the arguments of a `Port` method for sending: cases to fields, forces to tuples.

    has_weights: whether the port has the cases' parameters, so that they are not sent.
    """
    return [_plain(argument, has_weights) for argument in arguments]


def asked(arguments: Sequence[Any]) -> list[Any]:
    """Restores arguments that `plain` converted."""
    return [_asked(argument) for argument in arguments]


def _plain(argument: Any, has_weights: bool) -> Any:
    if isinstance(argument, Case):
        fields = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
        fields |= {"parameters": {}} if has_weights else {}
        return fields | {"config": argument.config.to_dict(), "mesh": argument.mesh and argument.mesh.to_dict()}
    return argument and [None if force is None else tuple(force) for force in argument]


def _asked(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        mesh = argument["mesh"] and Mesh.from_dict(argument["mesh"])
        return Case(**{**argument, "config": TransformerConfig.from_dict(argument["config"]), "mesh": mesh})
    return argument and [None if force is None else Force(*force) for force in argument]


def problem(method: str, arguments: Sequence[Any], answer: Answer) -> str:
    """Returns why this is not a valid answer to the question; "" if it is valid."""
    kind, value = answer
    if kind in (Kind.CRASH, Kind.HANG):
        return ""
    if kind in REASONS.get(method, OTHERS):
        return "" if type(value) is str else f"{kind} without a reason"
    if kind != (Kind.READY if method == START else Kind.OUTPUTS):
        return f"unexpected kind {kind}"
    if method == "answer":
        return "" if _is_mapping(value, _is_array) else "the outputs are not a mapping from name to array"
    return _trace(arguments[1], value) if method == "trace" else _about(value)


def _about(value: Any) -> str:
    """Returns what is wrong with a port's description of itself; "" if nothing is."""
    if not _is_mapping(value, lambda item: True) or any(name not in value for name in NEEDED):
        return f"the handshake lacks one of {', '.join(NEEDED)}"
    wrong = [name for name in value if name not in ABOUT or not ABOUT[name](value[name])]
    return f"the handshake has an invalid entry {wrong[0]}" if wrong else ""


def _trace(forces: Sequence[Any], value: Any) -> str:
    """Returns what is wrong with the traces, one per force; "" if nothing is."""
    if type(value) is not list or len(value) != len(forces):
        return f"expected {len(forces)} traces"
    for force, run in zip(forces, value, strict=True):
        if not _is_mapping(run, _is_traced) or (force is None and "" not in run):
            return "a trace has an invalid entry"
    return ""


def _is_traced(value: Any) -> bool:
    kinds: dict[str, Callable[[Any], bool]] = {
        "inputs": lambda part: type(part) is list and all(map(_is_array, part)),
        "output": lambda part: part is None or _is_array(part),
        "error": lambda part: type(part) is str,
        "refused": lambda part: type(part) is str,
        "gradients": _is_gradients,
    }
    return type(value) is dict and "inputs" in value and all(name in kinds and kinds[name](part) for name, part in value.items())


def _is_gradients(value: Any) -> bool:
    return (
        type(value) is dict
        and value.keys() == {"inputs", "parameters"}
        and all(type(part) is dict for part in value.values())
        and all(type(index) is int and _is_array(array) for index, array in value["inputs"].items())
        and _is_mapping(value["parameters"], _is_array)
    )


def _is_value(value: Any) -> bool:
    """Whether JSON can represent the value: a scalar, or a list or mapping of values."""
    if type(value) in (list, tuple):
        return all(map(_is_value, value))
    if type(value) is dict:
        return _is_mapping(value, _is_value)
    return value is None or type(value) in (bool, int, float, str)


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray


def _is_names(value: Any) -> bool:
    return type(value) in (list, tuple) and all(type(name) is str for name in value)


def _is_mapping(value: Any, good: Callable[[Any], bool]) -> bool:
    """Whether the value is a mapping from text to values that `good` accepts."""
    return type(value) is dict and all(type(name) is str and good(item) for name, item in value.items())
