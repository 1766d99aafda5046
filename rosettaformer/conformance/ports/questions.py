"""Questions to a port's process, as plain data: the judge's cases and forces on one side, the same on the other."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case

__all__ = ["Force", "asked", "plain"]


class Force(NamedTuple):
    """One component, by its canonical path, that is given these inputs instead of its own.

    cotangent: where it is given, the gradient of the sum of cotangent * output is asked for, too.
    """

    path: str
    inputs: list[np.ndarray]
    cotangent: np.ndarray | None = None


def plain(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a method of `Port` as they are sent: a case by its fields, a list of forces as tuples."""
    return [_plain(argument) for argument in arguments]


def asked(arguments: Sequence[Any]) -> list[Any]:
    """The arguments that were sent as `plain` gives them."""
    return [_asked(argument) for argument in arguments]


def _plain(argument: Any) -> Any:
    if isinstance(argument, Case):
        fields = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
        return fields | {"config": argument.config.to_dict()}
    return argument and [None if force is None else tuple(force) for force in argument]


def _asked(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        return Case(**{**argument, "config": TransformerConfig.from_dict(argument["config"])})
    return argument and [None if force is None else Force(*force) for force in argument]
