"""The plain versions of components: short functions in four frameworks, side by side."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ...judge.components import DECLARED
from ..code import Code, lines
from .cells import unindented
from .modules import PACKAGES

FOLDER = resources.files("rosettaformer.guide") / "snippets" / "components"
ORIGIN = "rosettaformer/guide/snippets/components"
FILES = dict(zip(PACKAGES, ("plain_numpy.py", "plain_pytorch.py", "plain_keras.py", "plain_flax.py"), strict=True))
TITLES = dict(zip(PACKAGES, ("NumPy", "PyTorch", "Keras", "JAX"), strict=True))
LONGEST = 15  # most lines of a function


@dataclass(frozen=True)
class Statement:
    """A statement: lines as (indentation width, HTML); opens: whether it starts a function."""

    lines: tuple[tuple[int, Any], ...]
    origin: str
    opens: bool


def functions(component: str) -> tuple[str, ...]:
    """Returns the names of the component's plain functions; empty if it has no plain version."""
    declared = DECLARED[component]
    return () if declared.without_plain else declared.plain or (component,)


def rows(component: str) -> list[tuple[Statement, ...]]:
    """Returns the statements of the component's plain functions, corresponding ones in a row."""
    columns = [[statement for name in functions(component) for statement in _statements(package, name)] for package in PACKAGES]
    return list(zip(*columns, strict=True))


def used(component: str) -> list[str]:
    """Returns the plain functions that the component's own ones call, without themselves."""
    shown = functions(component)
    nodes = (node for name in shown for node in ast.walk(function(PACKAGES[0], name)))
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [name for name in dict.fromkeys(calls) if name in _parsed(PACKAGES[0]) and name not in shown]


def function(package: str, name: str) -> ast.FunctionDef:
    """Returns the syntax tree of a plain function."""
    return _parsed(package)[name]


def home_of(name: str) -> str:
    """Returns the component whose page shows a plain function first."""
    return _homes().get(name, name)


def example() -> tuple[Code, str]:
    """Returns an example call of the attention and its output."""
    file = FOLDER / "attention_example.py"
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    return Code(file.read_text(encoding="utf-8"), f"{ORIGIN}/{file.name}"), ran.stdout


def _statements(package: str, name: str) -> Iterator[Statement]:
    node = function(package, name)
    yield _statement(package, node.lineno, node.body[0].lineno - 1, True)
    for part in node.body:
        for first, last in _parts(part):
            yield _statement(package, first, last, False)


def _parts(node: ast.stmt) -> Iterator[tuple[int, int]]:
    """Yields first and last lines: of the statement, or of its header and each part."""
    body: list[ast.stmt] = getattr(node, "body", [])
    yield node.lineno, body[0].lineno - 1 if body else node.end_lineno or node.lineno
    for part in body:
        yield from _parts(part)


def _statement(package: str, first: int, last: int, opens: bool) -> Statement:
    text = _text(package)
    plain, marked = text.split("\n"), lines(text)
    made = tuple((len(plain[i]) - len(plain[i].lstrip()), unindented(marked[i])) for i in range(first - 1, last))
    return Statement(made, f"{ORIGIN}/{FILES[package]}:{first}", opens)


@functools.cache
def _homes() -> dict[str, str]:
    return {name: one.name for one in reversed([*DECLARED.values()]) for name in one.plain}


@functools.cache
def _parsed(package: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(_text(package)).body if isinstance(node, ast.FunctionDef)}


@functools.cache
def _text(package: str) -> str:
    return (FOLDER / FILES[package]).read_text(encoding="utf-8")
