"""The arguments of a component: axes, defaults, and descriptions from the reference."""

import ast
import functools
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from ...judge.expectation.components import OWN, VJP, function_of
from ...judge.suite import all_cases
from .modules import PACKAGES, Symbol, main_of, read
from .prose import WORDS, axes_in_words

Texts = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Argument:
    """An argument of the reference's function.

    axes: the letters at the end of its name, in words; default: as in Python.

    field: the config field from which a model takes it, if there is one.
    """

    name: str
    axes: str
    default: str
    meaning: str
    field: str


@dataclass(frozen=True)
class Cases:
    """The cases of a component. given: outermost names of their inputs."""

    core: int
    all: int
    given: tuple[str, ...]


@functools.cache
def arguments(component: str) -> tuple[Argument, ...]:
    """Returns the arguments of the reference's function, in its order."""
    fields = OWN[component].arguments
    found = []
    for name, parameter in inspect.signature(function_of(component)).parameters.items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        default = "float64" if "float64" in default else default
        field = "" if name == "dtype" else fields.get(name, "")
        axes = _texts()["axes"].get(name) or axes_in_words(letters_of(name, parameter.annotation))
        found.append(Argument(name, axes, default, _meaning(component, name), field))
    return tuple(found)


def letters_of(name: str, annotation: object) -> str:
    """Returns `b t d` for an array `x_btd`; empty if it has no fixed axes."""
    suffix = name.rpartition("_")[2]
    known = "_" in name and set(suffix) <= set(WORDS) and len(set(suffix)) == len(suffix)
    return " ".join(suffix) if known and "ndarray" in str(annotation) else ""


def errors(component: str) -> list[str]:
    """Returns the errors described in the docstring."""
    return re.findall(r"Raises [^.]*(?:\.\w[^.]*)*\.", _text(inspect.getdoc(function_of(component))))


@functools.cache
def cases_of() -> Mapping[str, Cases]:
    """Returns the cases of every component."""
    every = [case for case in all_cases(grad=True) if case.component in OWN]
    core, total = Counter(case.component for case in every if case.core), Counter(case.component for case in every)
    given: dict[str, dict[str, None]] = {component: {} for component in OWN}
    for case in every:
        given[case.component] |= dict.fromkeys(key.partition(".")[0] for key in case.inputs if key != "cotangent")
    return {component: Cases(core[component], total[component], tuple(given[component])) for component in OWN}


def reached(component: str) -> Iterator[Symbol]:
    """Yields the reference definitions that a component runs, its own first, then breadth-first."""
    seen: dict[Symbol, None] = {}
    queue = [*main_of(component, PACKAGES[0])]
    while queue:
        symbol = queue.pop(0)
        if symbol in seen:
            continue
        seen[symbol] = None
        yield symbol
        file = read(*symbol[:2])
        node, owner = file.definitions[symbol.name], symbol.name.partition(".")[0] if "." in symbol.name else ""
        queue += file.references(node, owner)


def _meaning(component: str, name: str) -> str:
    """Returns the description of an argument.

    Sources, in order: the table; the docstring of the component, of its forward component, or of a
    component named there (`layer: as ...`, `Arguments match ...`); the nearest function that
    receives the argument.
    """
    texts, forward = _texts(), component.removesuffix(VJP)
    for own in dict.fromkeys((component, forward)):
        if found := texts.get(own, {}).get(name, "") or _said(name, _text(inspect.getdoc(function_of(own)))):
            other = re.fullmatch(r"as `(?:\w+\.)?(\w+)`", found)
            return _meaning(other[1], name) if other else found
    return (_handed_on(forward, name) if name not in ("parameters", "config") else "") or texts["any"].get(name, "")


def _handed_on(component: str, name: str) -> str:
    text = _text(inspect.getdoc(function_of(component)))
    for other in re.findall(r"\b(?:[Aa]s|match) `(?:\w+\.)?(\w+)`", text):
        if other in OWN and name in inspect.signature(function_of(other)).parameters:
            return _meaning(other, name)
    for symbol in reached(component):
        node = read(*symbol[:2]).definitions[symbol.name]
        takes = isinstance(node, ast.FunctionDef) and name in (part.arg for part in (*node.args.args, *node.args.kwonlyargs))
        if takes and (found := _said(name, _text(ast.get_docstring(node)))):
            return found
    return ""


def _said(name: str, text: str) -> str:
    """Returns a docstring's text after `name:`, to the sentence's or description's end."""
    text = text.partition(" Source: ")[0]
    start = re.search(rf"(?:^|[.;,] |`\. )(?:\w+(?:, | and ))*{name}(?:(?:, | and )\w+)*: ", text)
    if not start:
        return ""
    rest = re.split(r"(?<=[^.][a-z0-9`)])\. (?=[A-Za-z])|; (?=\w+: )", text[start.end() - 1 :])[0]
    return rest.strip().rstrip(".")


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


@functools.cache
def _texts() -> Texts:
    """Returns the table of meanings: by component, `any` or `axes`, then by argument."""
    return tomllib.loads((resources.files(__package__) / "arguments.toml").read_text(encoding="utf-8"))
