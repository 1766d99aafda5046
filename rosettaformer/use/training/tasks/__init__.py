"""Training tasks: pairs of texts to learn from, and held-out pairs to evaluate on."""

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


# type of an option -> check of its values
_FIELDS: Mapping[Any, schema.Check] = {
    int: schema.integer(-schema.LARGEST), bool: schema.BOOLEAN, str: schema.text(), str | None: schema.optional(schema.text(10_000)),
}  # fmt: skip

Pair = tuple[str, str]  # source text, target text


@dataclass(frozen=True)
class Data:
    """The pairs of a task.

    epoch: returns the training pairs of an epoch, which depend only on the task's options.
    validation, test: held out of every epoch. notes: remarks for the user.
    """

    epoch: Callable[[int], Sequence[Pair]]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: Sequence[str] = ()

    def digest(self) -> str:
        """Returns a fingerprint of the pairs, equal for equal data."""
        pairs = [list(self.epoch(0)), list(self.validation), list(self.test)]
        return schema.digest(json.dumps(pairs, ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The common options of all tasks. Subclasses add options, a name and `data`.

    held_out: the number of validation pairs, and of test pairs. seed: for everything random. Raises
    ValueError on options out of range.
    """

    name: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}  # default options for runs of this task
    held_out: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        table = {field.name: _FIELDS[field.type] for field in dataclasses.fields(self)}
        schema.refuse(schema.problems({name: getattr(self, name) for name in table}, table, "task"))
        if self.held_out < 1:
            raise ValueError(f"held_out must be at least 1, or the validation set would be empty; got {self.held_out}")

    @abc.abstractmethod
    def data(self) -> Data:
        """Returns the pairs; raises ValueError if there are too few."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the name and the options as JSON data."""
        return {"name": self.name} | dataclasses.asdict(self)


def create(name: str, given: Mapping[str, Any]) -> Task:
    """Creates a task; raises ValueError on an unknown name, unknown options and invalid values."""
    found = kind(name)
    if idle := [option for option in given if option not in (*fields(name), "seed")]:
        raise ValueError(f"{', '.join(idle)}: not an option of the task {name}, which has {', '.join(fields(name))}")
    return found(**given)


def kind(name: str) -> type[Task]:
    """Returns the class of a task."""
    known("task", [name], TASKS)
    module, cls = TASKS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


def fields(name: str) -> dict[str, Any]:
    """Returns the options of a task that a user may set, with their types."""
    return {field.name: field.type for field in dataclasses.fields(kind(name)) if field.name != "seed"}


def split(pairs: Sequence[Pair], held_out: int, seed: int, notes: Sequence[str] = ()) -> Data:
    """Splits pairs in random order, keeping equal sources on the same side.

    Raises ValueError if there are too few for training or validation.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[0], []).append(pair)
    if len(groups) < 2 * held_out + 1:
        raise ValueError(
            f"there are too few pairs for a training and a validation set: {held_out} pairs for validation and {held_out} for test "
            f"need more than {2 * held_out} different sources; got {len(groups)}. Reduce held_out with --data held_out=N"
        )
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = [list(groups.values())[index] for index in order]
    validation, test = ([group[0] for group in shuffled[start : start + held_out]] for start in (0, held_out))
    train = [pair for group in shuffled[2 * held_out :] for pair in group]
    return Data(lambda _: train, validation, test, notes)
