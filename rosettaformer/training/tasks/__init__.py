"""Tasks: pairs of texts to learn from, and held-out ones to be judged on. One file each."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from reference_numpy.suggestions import known

from .task import Data, Pair, Task

__all__ = ["TASKS", "Data", "Pair", "Task", "create", "kind", "options"]

# name -> (module, class), imported when it is asked for
TASKS = {
    "number-words": ("number_words", "NumberWords"),
    "copy": ("strings", "Copy"),
    "reverse": ("strings", "Reverse"),
    "files": ("files", "Files"),
    "gettext": ("catalogues", "Catalogues"),
}


def create(name: str, given: Mapping[str, Any]) -> Task:
    """The task of that name with these options; raises ValueError on an unknown name, on options it does not take and on bad values."""
    found = kind(name)
    if idle := [option for option in given if option not in options(name)]:
        raise ValueError(f"{', '.join(map(_flag, idle))} means nothing to the task {name}, which takes {_flags(name)}")
    return found(**given)


def kind(name: str) -> type[Task]:
    """The class of the task of that name."""
    known("task", [name], TASKS)
    module, cls = TASKS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


def options(name: str) -> tuple[str, ...]:
    """The names of the options that a task takes."""
    return tuple(field.name for field in dataclasses.fields(kind(name)))


def _flags(name: str) -> str:
    return ", ".join(map(_flag, options(name)))


def _flag(option: str) -> str:
    return "--" + option.removesuffix("_language").replace("_", "-")
