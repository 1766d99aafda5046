"""Builds a user's module at small sizes: which argument of its constructor is which field of the config."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from reference_numpy import TransformerConfig, preset

from .constructor_arguments import CONFIGURATIONS, expression, is_wanted, meaning_of
from .failures import FAILURES, failure, limited


@dataclass(frozen=True)
class Construction:
    """How a module is built.

    meanings: of each argument that is passed. text: the expression. make: builds the module of a config. imports: lines that the expression
    needs.
    """

    meanings: Mapping[str, str]
    text: str
    make: Callable[[TransformerConfig], Any]
    imports: tuple[str, ...] = ()
    width = 20  # of the feed-forward, as the constructor is given it

    @property
    def fields(self) -> set[str]:
        return set(self.meanings.values())

    def replaced(self, **texts: str) -> "Construction":
        """Returns the same with other expressions in place of config fields: `encoder_layers="config.decoder_layers"`."""
        text = self.text
        for name, other in texts.items():
            text = re.sub(rf"\bconfig\.{name}\b", other, text)
        return dataclasses.replace(self, text=text)


@dataclass
class _Arguments:
    """The arguments of one call, as expressions; and the unknown ones."""

    texts: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def plan(make: Callable[..., Any], name: str, module: ModuleType, given: Mapping[str, str]) -> Construction:
    """Returns how `make`, of that name in its module, is called to build the module of a config.

    given: arguments by name, as a Python value or `config.FIELD`. A configuration object has the fields of its class, if the module defines
    one, otherwise those that the constructor reads. Raises ValueError if an argument without a default has no counterpart, with how to give
    it.
    """
    for argument, text in given.items():
        _require_value(argument, text)
    signature = _signature(make, name)
    found = _matched(signature, given)
    imports: list[str] = []
    for argument in [one for one in found.unknown if one in CONFIGURATIONS]:
        found.unknown.remove(argument)
        others = {name: value for name, value in found.texts.items() if "config" not in value}
        text, line, meanings = _configuration(make, argument, signature.parameters[argument].annotation, module, given, others)
        found.texts[argument] = text
        found.meanings |= meanings
        imports += [line] if line else []
    used = " ".join(found.texts.values())
    spare = [one for one in given if one not in found.texts and f"{one}=" not in used and f'"{one}": ' not in used]
    if spare:
        raise ValueError(f"--with must name arguments of {name}; it has no {', '.join(spare)}")
    if found.unknown:
        raise ValueError(
            f"{name} needs values for {', '.join(found.unknown)}, whose meaning is not known; give "
            + " ".join(f"--with {one}=VALUE" for one in found.unknown)
            + ", a Python value or a field such as config.model_width"
        )
    if "random" in found.meanings.values():
        imports.append("from flax import nnx")
    text = f"{name}({', '.join(f'{argument}={value}' for argument, value in found.texts.items())})"
    names = {name: make, **_namespace(imports), "dtype": "float32"}
    return Construction(found.meanings, text, lambda config: _evaluated(text, names | {"config": config}), tuple(imports))


def _signature(make: Callable[..., Any], name: str) -> inspect.Signature:
    """Returns the arguments that a function or the constructor of a class declares, even if a metaclass hides them."""
    try:
        if inspect.isclass(make) and inspect.isfunction(make.__init__):
            return inspect.signature(functools.partial(make.__init__, None))
        return inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the arguments of {name} cannot be seen; name a function that builds it") from error


def _matched(signature: inspect.Signature, given: Mapping[str, str]) -> _Arguments:
    found = _Arguments()
    for name, argument in signature.parameters.items():
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        needed, meaning = argument.default is argument.empty, meaning_of(name, signature.parameters)
        if name in given:
            found.texts[name] = given[name]
            found.meanings[name] = given[name].removeprefix("config.")
        elif meaning and (needed or is_wanted(meaning, argument.default)):
            found.texts[name] = expression(meaning)
            found.meanings[name] = meaning
        elif needed:
            found.unknown.append(name)
    if any(argument.kind == argument.VAR_KEYWORD for argument in signature.parameters.values()):  # takes any other argument
        others = {name: text for name, text in given.items() if name not in found.texts}
        found.texts |= others
        found.meanings |= {name: text.removeprefix("config.") for name, text in others.items()}
    return found


def _configuration(
    make: Any, argument: str, annotation: Any, module: ModuleType, given: Mapping[str, str], others: Mapping[str, str]
) -> tuple[str, str, dict[str, str]]:
    """Returns the expression of a configuration object, the line that imports its class, if any, and the meanings of its fields.

    others: the expressions of the constructor's other arguments that are values.
    """
    reader = _Reader(given)
    with contextlib.suppress(*FAILURES), limited(f"{getattr(make, '__name__', 'it')}({argument}=...)"):  # what it reads counts
        make(**{argument: reader, **{name: ast.literal_eval(value) for name, value in others.items()}})
    if reader.is_mapping:
        _require_known(reader, make, argument)
        return "{" + ", ".join(f'"{name}": {value}' for name, value in reader.texts.items()) + "}", "", reader.meanings
    for cls in (annotation, *vars(module).values()):
        if isinstance(annotation, str) and getattr(cls, "__name__", "") != annotation:
            continue
        if not inspect.isclass(cls) or cls is inspect.Parameter.empty:
            continue
        if cls is annotation or re.search("(Config|Args|Params)$", cls.__name__):
            if cls is TransformerConfig:
                return "config", "", {}
            found = _matched(inspect.signature(cls), given)
            if not found.unknown:
                text = f"{cls.__name__}({', '.join(f'{name}={value}' for name, value in found.texts.items())})"
                return text, f"from {cls.__module__} import {cls.__name__}", found.meanings
    _require_known(reader, make, argument)
    text = f"SimpleNamespace({', '.join(f'{name}={value}' for name, value in reader.texts.items())})"
    return text, "from types import SimpleNamespace", reader.meanings


def _require_known(reader: "_Reader", make: Any, argument: str) -> None:
    """Raises ValueError if something is read whose meaning is unknown."""
    if reader.unknown:
        raise ValueError(
            f"{getattr(make, '__name__', 'it')} cannot be built: what {argument}.{reader.unknown[0]} means is not known; give it as "
            f"--with {reader.unknown[0]}=VALUE, a Python value or a field such as config.model_width"
        )


class _Reader:
    """Stands in for a configuration object; records what is read of it, and whether by keys, as from a mapping."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given, self.texts, self.meanings, self.unknown = given, {}, {}, []  # type: ignore[var-annotated]
        self.is_mapping = False

    def __getitem__(self, name: str) -> Any:
        self.is_mapping = True
        try:
            return self.__getattr__(name)
        except AttributeError as error:
            raise KeyError(name) from error

    def __contains__(self, name: str) -> bool:
        self.is_mapping = True
        known = name in self.given or bool(meaning_of(name, ()))
        if known:  # a name that is said to exist must then exist
            self.__getattr__(name)
        return known

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value that is read; the default if its meaning is unknown."""
        self.is_mapping = True
        if name not in self:
            return default
        return self[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        meaning = meaning_of(name, ())
        if name not in self.given and not meaning:
            self.unknown.append(name)
            raise AttributeError(name)
        self.texts[name] = self.given.get(name, expression(meaning))
        self.meanings[name] = meaning
        flag = meaning in ("bias", "batch_first", "norm_first")
        with contextlib.suppress(ValueError, SyntaxError):
            return True if flag else ast.literal_eval(self.texts[name].replace("config.rotary_base", "10000.0"))
        return getattr(preset("tiny"), meaning, 0) or 2


def _require_value(argument: str, text: str) -> None:
    """Raises ValueError unless the text is a Python value or a field of the config: nothing else is evaluated."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if not re.fullmatch(r"config\.\w+", text) or text.partition(".")[2] not in TransformerConfig.__dataclass_fields__:
            raise ValueError(f"--with {argument} must be a Python value or a field such as config.model_width; got {text!r}") from None


def _namespace(imports: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"SimpleNamespace": SimpleNamespace}
    exec("\n".join(imports), names)
    return names


def _evaluated(text: str, names: dict[str, Any]) -> Any:
    """Returns the module. Raises ValueError if the user's constructor fails."""
    try:
        with limited(text):
            return eval(text, names)
    except FAILURES as error:
        raise ValueError(f"{text} cannot be built: {failure(error)}; other arguments are given as --with NAME=VALUE") from error
