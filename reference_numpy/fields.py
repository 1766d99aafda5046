"""Validated dataclass fields for configs, recipes and strategies."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, get_args

from .suggestions import LONGEST_NAME, unknown

__all__ = [
    "BOOLEAN",
    "FRACTION",
    "INTEGER",
    "INTEGER_OR_NONE",
    "MODERATE",
    "MODERATE_OR_ZERO",
    "NAME",
    "NUMBER",
    "NUMBER_OR_NONE",
    "POSITIVE",
    "POSITIVE_OR_NONE",
    "SHARE",
    "Fields",
    "Rule",
    "SeveralValues",
    "Values",
    "at_least",
    "at_most",
    "integer",
    "is_integer",
    "is_number",
    "one_of",
    "or_none",
    "sequence_of",
]


Values = dict[str, Any]  # field values by name


class SeveralValues(ValueError):
    """A name stands for several fields whose values differ."""


class Rule(NamedTuple):
    """A requirement on a value. good: tests a value; wanted: the requirement in words."""

    good: Callable[[Any], bool]
    wanted: str


def is_integer(value: object) -> bool:
    """Returns True for integers, except bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Returns True for numbers that are finite in float64, except bool."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


INTEGER = Rule(is_integer, "an integer")
NUMBER = Rule(is_number, "a finite number")
INTEGER_OR_NONE = Rule(lambda value: value is None or is_integer(value), "an integer or None")
NUMBER_OR_NONE = Rule(lambda value: value is None or is_number(value), "a finite number or None")
BOOLEAN = Rule(lambda value: isinstance(value, bool), "True or False")
NAME = Rule(lambda value: isinstance(value, str), "a name")
POSITIVE = Rule(lambda value: is_number(value) and value > 0, "greater than 0")
LEAST, MOST = 1e-30, 1e30  # float32 holds these numbers and their inverses
MODERATE = Rule(
    lambda value: not is_number(value) or LEAST <= value <= MOST, f"from {LEAST:g} to {MOST:g}"
)
MODERATE_OR_ZERO = Rule(
    lambda value: not is_number(value) or value == 0 or LEAST <= abs(value) <= MOST,
    f"0, or from {LEAST:g} to {MOST:g} in size",
)
FRACTION = Rule(lambda value: is_number(value) and 0 < value <= 1, "greater than 0 and at most 1")
SHARE = Rule(lambda value: is_number(value) and 0 <= value < 1, "at least 0 and less than 1")


def integer(least: int) -> Rule:
    wanted = f"an integer of at least {least}"
    return Rule(lambda value: is_integer(value) and value >= least, wanted)


def at_least(least: int) -> Rule:
    return Rule(lambda value: is_number(value) and value >= least, f"at least {least}")


def at_most(most: int) -> Rule:
    return Rule(lambda value: is_number(value) and value <= most, f"at most {most}")


def one_of(names: Collection[str]) -> Rule:
    return Rule(lambda value: value in names, f"one of {', '.join(names)}")


def or_none(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.good(value), f"{rule.wanted}, or None")


POSITIVE_OR_NONE = or_none(POSITIVE)


def sequence_of(rule: Rule) -> Rule:
    """Requires a non-empty tuple whose values all fit the rule."""
    return Rule(
        lambda value: isinstance(value, tuple) and len(value) > 0 and all(map(rule.good, value)),
        f"a sequence of at least one value, each {rule.wanted}",
    )


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Base of frozen dataclasses whose fields are `Annotated` with rules, the type rule first.

    Raises ValueError naming every field that breaks a rule, with the first broken rule and the
    value. If all types are right, conflicts between fields are listed too.
    """

    KIND: ClassVar[str]  # name in messages, such as "config"
    # a name -> the fields that it sets to one value
    TOGETHER: ClassVar[Mapping[str, Sequence[str]]] = {}
    LARGEST: ClassVar[int] = 2**53  # magnitude of an integer; float64 holds all integers up to it

    def __post_init__(self) -> None:
        size = Rule(
            lambda value: not is_integer(value) or abs(value) <= self.LARGEST,
            f"at most {self.LARGEST} in size",
        )
        problems, sound = list[str](), True
        for field in dataclasses.fields(self):
            value, (type_, *others) = getattr(self, field.name), get_args(field.type)[1:]
            broken = [rule for rule in (type_, size, *others) if not rule.good(value)]
            problems += [
                f"{field.name} must be {rule.wanted}; got {value!r:.{LONGEST_NAME}}"
                for rule in broken[:1]
            ]
            sound = sound and type_ not in broken and size not in broken
        if sound:
            problems += self._conflicts()
        if problems:
            raise ValueError("; ".join(problems))

    def _conflicts(self) -> Iterator[str]:
        """Yields one problem for each pair of conflicting fields."""
        yield from ()

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed fields; raises ValueError on unknown fields and values."""
        changes, names = self.apart(changes), [field.name for field in dataclasses.fields(self)]
        if problems := unknown(f"{self.KIND} field", changes, names):
            raise ValueError("; ".join(problems))
        return dataclasses.replace(self, **changes)

    @classmethod
    def apart(cls, given: Mapping[str, Any]) -> Values:
        """Returns values by field, as in `to_dict`; names in `TOGETHER` set several fields."""
        apart = {name: value for name, value in given.items() if name not in cls.TOGETHER}
        named = {
            name: value.to_dict() if isinstance(value, Fields) else _listed(value)
            for name, value in apart.items()
        }
        for name in [name for name in given if name in cls.TOGETHER]:
            named |= {field: given[name] for field in cls.TOGETHER[name] if field not in named}
        return named

    def to_dict(self) -> Values:
        """Returns the fields by name, as JSON can hold them."""
        return {name: _listed(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; raises ValueError naming every missing and unknown field."""
        fields = cls.apart(fields)
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        needed = [name for name, default in defaults.items() if default is dataclasses.MISSING]
        problems = unknown(f"{cls.KIND} field", fields, defaults)
        missing = [name for name in needed if name not in fields]
        if missing and len(needed) == len(defaults):
            problems.append(f"a {cls.KIND} needs every field; missing {', '.join(missing)}")
        else:
            problems += [f"a {cls.KIND} needs {name}" for name in missing]
        if problems:
            raise ValueError("; ".join(problems))
        return cls(**fields)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
