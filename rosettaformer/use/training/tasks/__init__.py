"""Tasks: pairs of texts to learn from, and held-out pairs to be judged on."""

import abc
import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reference_numpy.suggestions import known

from .. import schema

# name -> (module, class), imported on demand
TASKS = {
    "number-words": ("generated", "NumberWords"),
    "copy": ("generated", "Copy"),
    "reverse": ("generated", "Reverse"),
    "files": ("files", "Files"),
}


# the type of an option -> the required values
_FIELDS: Mapping[Any, schema.Check] = {
    int: schema.integer(-schema.LARGEST), bool: schema.BOOLEAN, str: schema.text(), str | None: schema.optional(schema.text(10_000)),
}  # fmt: skip

Pair = tuple[str, str]  # a source text and its target text


@dataclass(frozen=True)
class Data:
    """The pairs of a task.

    epoch: number -> the training pairs of that epoch, a function of the task's options only. validation, test: held out of every epoch.
    notes: what a user should know about how they were made.
    """

    epoch: Callable[[int], Sequence[Pair]]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: Sequence[str] = ()

    def digest(self) -> str:
        """Returns a fingerprint of the pairs: runs with equal fingerprints learn from the same data."""
        pairs = [list(self.epoch(0)), list(self.validation), list(self.test)]
        return schema.digest(json.dumps(pairs, ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The options that every task takes; a task is a subclass with its own options, a name and `data`.

    held_out: numbers of validation and of test pairs. seed: of everything random.
    Raises ValueError on options out of range.
    """

    name: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}  # options of a run that suit the task better than the defaults
    held_out: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        table = {field.name: _FIELDS[field.type] for field in dataclasses.fields(self)}
        schema.refuse(schema.problems({name: getattr(self, name) for name in table}, table, "task"))
        if self.held_out < 1:
            raise ValueError(f"held_out must be at least 1, or the validation set is empty; got {self.held_out}")

    @abc.abstractmethod
    def data(self) -> Data:
        """Returns the pairs; raises ValueError if there are none, or too few."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the name and the options in a form that JSON can hold."""
        return {"name": self.name} | dataclasses.asdict(self)


def create(name: str, given: Mapping[str, Any]) -> Task:
    """Returns the task of that name with these options; raises ValueError on an unknown name, unknown options and bad values."""
    found = kind(name)
    if idle := [option for option in given if option not in (*fields(name), "seed")]:
        raise ValueError(f"{', '.join(idle)} means nothing to the task {name}, which takes {', '.join(fields(name))}")
    return found(**given)


def kind(name: str) -> type[Task]:
    """Returns the class of the task of that name."""
    known("task", [name], TASKS)
    module, cls = TASKS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


def fields(name: str) -> dict[str, Any]:
    """Returns the options of a task that a user may set, with their types."""
    return {field.name: field.type for field in dataclasses.fields(kind(name)) if field.name != "seed"}


def split(pairs: Sequence[Pair], held_out: int, seed: int, notes: Sequence[str] = ()) -> Data:
    """Splits the pairs in random order, so that equal sources stay on one side.

    Raises ValueError if nothing would be left to train on, or to validate on.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[0], []).append(pair)
    if len(groups) < 2 * held_out + 1:
        raise ValueError(
            f"the validation set would be empty, or nothing left to train on: {held_out} pairs for validation and {held_out} for test "
            f"need more than {2 * held_out} different sources; got {len(groups)} (a smaller held_out?)"
        )
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = [list(groups.values())[index] for index in order]
    validation, test = ([group[0] for group in shuffled[start : start + held_out]] for start in (0, held_out))
    train = [pair for group in shuffled[2 * held_out :] for pair in group]
    return Data(lambda _: train, validation, test, notes)
