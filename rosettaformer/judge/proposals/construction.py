"""Builds a user's module at small sizes, with its constructor's arguments matched to config fields."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from reference_numpy import TransformerConfig, preset

from .constructor_arguments import CONFIGURATIONS, expression, is_wanted, meaning_of
from .user_code import FAILURES, failure, limited

_FLAGS = ("bias", "batch_first", "norm_first")  # meanings whose arguments are True or False


@dataclass(frozen=True)
class Construction:
    """How to build a module.

    arguments: the expression of each argument, including the fields of a configuration object.
    meanings: the meaning of each. text: the expression that builds the module. make: builds the
    module for a config. given: the arguments that the user gave. imports: lines that the expression
    needs.
    """

    arguments: Mapping[str, str]
    meanings: Mapping[str, str]
    text: str
    make: Callable[[TransformerConfig], Any]
    given: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    width = 20  # feed-forward width passed to the constructor

    @property
    def fields(self) -> set[str]:
        return set(self.meanings.values())

    def replaced(self, texts: Mapping[str, str]) -> "Construction":
        """Returns a copy with other expressions for config fields."""

        def other(text: str) -> str:
            return re.sub(r"\bconfig\.(\w+)\b", lambda found: texts.get(found[1], found[0]), text)

        return dataclasses.replace(self, arguments={name: other(text) for name, text in self.arguments.items()}, text=other(self.text))


@dataclass
class _Arguments:
    """The arguments of a call, their meanings, and unknown ones. given: by the user."""

    given: Mapping[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def take(self, name: str, meaning: str) -> None:
        self.texts[name] = self.given.get(name, expression(meaning))
        self.meanings[name] = self.given.get(name, meaning).removeprefix("config.")

    def call(self, name: str) -> str:
        return f"{name}({', '.join(f'{argument}={text}' for argument, text in self.texts.items())})"


def plan(make: Callable[..., Any], name: str, module: ModuleType, given: Mapping[str, str]) -> Construction:
    """Returns how to call `make`, named so in its module, to build the module for a config.

    given: arguments by name, each a Python value or `config.FIELD`. A configuration object gets the
    fields of its class if the module defines one, otherwise those that the constructor reads.
    Raises ValueError if the meaning of a required argument is unknown; the message says how to give
    it.
    """
    for argument, text in given.items():
        _require_value(argument, text)
    signature = _signature(make, name)
    found = _matched(signature, given)
    arguments, meanings, imports = dict(found.texts), dict(found.meanings), list[str]()
    for argument in [one for one in found.unknown if one in CONFIGURATIONS]:
        found.unknown.remove(argument)
        others = {name: value for name, value in found.texts.items() if "config" not in value}
        annotation = signature.parameters[argument].annotation
        found.texts[argument], line, read = _configuration(make, argument, annotation, module, given, others)
        arguments, meanings, imports = arguments | read.texts, meanings | read.meanings, imports + [line] * bool(line)
    if spare := [one for one in given if one not in arguments]:
        raise ValueError(f"--with: {name} has no argument {', '.join(spare)}")
    if found.unknown:
        raise ValueError(
            f"cannot tell what {', '.join(found.unknown)} of {name} means: give "
            + " ".join(f"--with {one}=VALUE" for one in found.unknown)
            + ". A VALUE is a Python value or a field such as config.model_width"
        )
    imports += ["from flax import nnx"] * ("random" in meanings.values())
    names: dict[str, Any] = {}
    exec("\n".join(imports), names)
    text, names = found.call(name), names | {name: make, "dtype": "float32"}
    make_module = functools.partial(_evaluated, text, names)
    return Construction(arguments, meanings, text, make_module, tuple(given), tuple(imports))


def _signature(make: Callable[..., Any], name: str) -> inspect.Signature:
    """Returns a function's or constructor's arguments, even if a metaclass hides them."""
    try:
        if inspect.isclass(make) and inspect.isfunction(make.__init__):
            return inspect.signature(functools.partial(make.__init__, None))
        return inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of {name} cannot be inspected. Choose a function that builds it") from error


def _matched(signature: inspect.Signature, given: Mapping[str, str]) -> _Arguments:
    found, takes_others = _Arguments(given), False
    for name, argument in signature.parameters.items():
        takes_others |= argument.kind == argument.VAR_KEYWORD
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        needed, meaning = argument.default is argument.empty, meaning_of(name, signature.parameters)
        if name in given or (meaning and (needed or is_wanted(meaning, argument.default))):
            found.take(name, meaning)
        elif needed:
            found.unknown.append(name)
    for name in [one for one in given if takes_others and one not in found.texts]:
        found.take(name, "")
    return found


def _configuration(
    make: Any, argument: str, annotation: Any, module: ModuleType, given: Mapping[str, str], others: Mapping[str, str]
) -> tuple[str, str, _Arguments]:
    """Returns a configuration object's expression, its class's import, and its fields.

    others: the expressions of the constructor's other literal arguments. Raises ValueError if the
    constructor reads a field of unknown meaning.
    """
    reader, name = _Reader(given), getattr(make, "__name__", "it")
    with contextlib.suppress(*FAILURES), limited(f"{name}({argument}=...)"):  # only to record which fields it reads
        make(**{argument: reader, **{other: ast.literal_eval(value) for other, value in others.items()}})
    for cls in () if reader.is_mapping else _classes(annotation, module):
        found = _matched(inspect.signature(cls), given)
        if not found.unknown:
            return found.call(cls.__name__), f"from {cls.__module__} import {cls.__name__}", found
    read = reader.read
    if read.unknown:
        raise ValueError(
            f"cannot tell what {argument}.{read.unknown[0]} of {name} means: give --with {read.unknown[0]}=VALUE. "
            "A VALUE is a Python value or a field such as config.model_width"
        )
    if reader.is_mapping:
        return "{" + ", ".join(f'"{key}": {text}' for key, text in read.texts.items()) + "}", "", read
    return read.call("SimpleNamespace"), "from types import SimpleNamespace", read


def _classes(annotation: Any, module: ModuleType) -> Iterator[type]:
    """Yields candidates for the configuration's class: the annotation, then by name."""
    for cls in (annotation, *vars(module).values()):
        if not inspect.isclass(cls) or cls is inspect.Parameter.empty:
            continue
        if isinstance(annotation, str) and cls.__name__ != annotation:
            continue
        if cls is annotation or re.search("(Config|Args|Params)$", cls.__name__):
            yield cls


class _Reader:
    """Stands in for a configuration and records what is read, and whether by key."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.read, self.is_mapping = _Arguments(given), False

    def __getitem__(self, name: str) -> Any:
        self.is_mapping = True
        try:
            return self.__getattr__(name)
        except AttributeError as error:
            raise KeyError(name) from error

    def __contains__(self, name: str) -> bool:
        self.is_mapping = True
        known = name in self.read.given or bool(meaning_of(name, ()))
        if known:  # a name reported to exist must also be readable
            self.__getattr__(name)
        return known

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field; the default if its meaning is unknown."""
        known = name in self
        return self[name] if known else default

    def __getattr__(self, name: str) -> Any:
        meaning = "" if name.startswith("__") else meaning_of(name, ())
        if name not in self.read.given and not meaning:
            self.read.unknown += [] if name.startswith("__") else [name]
            raise AttributeError(name)
        self.read.take(name, meaning)
        with contextlib.suppress(ValueError, SyntaxError):
            return True if meaning in _FLAGS else ast.literal_eval(self.read.texts[name].replace("config.rotary_base", "10000.0"))
        return getattr(preset("tiny"), meaning, 0) or 2


def _require_value(argument: str, text: str) -> None:
    """Raises ValueError unless the text is a Python literal or a config field."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if not re.fullmatch(r"config\.\w+", text) or text.partition(".")[2] not in TransformerConfig.__dataclass_fields__:
            raise ValueError(f"--with {argument} must be a Python value or a field such as config.model_width; got {text!r}") from None


def _evaluated(text: str, names: dict[str, Any], config: TransformerConfig) -> Any:
    """Returns the module for a config. Raises ValueError if the user's constructor fails."""
    try:
        with limited(text):
            return eval(text, names | {"config": config})
    except FAILURES as error:
        raise ValueError(f"{text} failed: {failure(error)}. To pass other arguments, use --with NAME=VALUE") from error
