"""Code changes: one expression or statement of one function of the reference is another one.

Not changed, since no output in float64 shows it: validation (`EXCLUDED`, and statements that only
reject arguments), error messages, annotations, casts, and irrelevant keywords.
"""

import ast
import contextlib
import copy
import functools
import inspect
import pkgutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import numpy as np

import reference_numpy
from reference_numpy.arrays import Array

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import FRAMEWORKS
from ...expectation import components
from ...expectation.components import forward_of, module_of
from ...expectation.paths import Paths
from .expressions import CASTS, call, others, places, put

EXCLUDED = """
    arrays checks fields int8 layout parameters presets recipe sharding sites strategy suggestions
""".split()  # noqa: SIM905 - a list of names reads better in lines
INCLUDED = ("parameters.initialise", "parameters.initial_value")  # of these
REACHED = "_reached"  # the name of a function that noted functions call
BACKWARD = "_vjp"  # in the names of functions of the backward pass


@dataclass(frozen=True)
class Mutant:
    """One change of a function.

    key: the function and the change, without line numbers. place: the index of the changed
    expression or statement; site: that of its value. other: what replaces it.
    """

    function: "Function"
    key: str
    title: str
    fix: str
    place: int
    site: int
    other: ast.AST

    def code(self) -> CodeType:
        """The code of the changed function."""
        return self.function.with_(self.place, self.other)


class Function:
    """A function or method of the reference, by its name as in `patched`: `module.function`,
    `module.Class.method`.
    """

    def __init__(self, name: str, raw: Any) -> None:
        self.name, self.raw = name, raw
        self.tree = ast.parse(textwrap.dedent(inspect.getsource(raw)))
        self.definition.decorator_list = []
        self.places = list(places(self.definition))

    @property
    def definition(self) -> Any:
        return self.tree.body[0]

    @functools.cached_property
    def noted(self) -> CodeType:
        """The code with every expression noted, by its index, after it is evaluated."""
        twin = copy.copy(self)
        twin.tree = copy.deepcopy(self.tree)
        for index, place in reversed([*enumerate(places(twin.definition))]):
            if isinstance(place[-1], ast.expr):
                put(place, call(REACHED, ast.Constant(self.name), ast.Constant(index), place[-1]))
        return twin._compiled()

    def mutants(self, kinds: Mapping[int, str] | None = None) -> Iterator[Mutant]:
        """Yields the mutants; equal changes of a function are numbered.

        kinds: of values in a run, by site. With them, a name is also replaced with others whose
        value has the same kind, and a whole number is moved by one.
        """
        kinds = kinds or {}
        seen = Counter[str]()
        stored = [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        names = [*dict.fromkeys([*(one.arg for one in self.definition.args.args), *stored])]
        own = {node.id: kind for index, kind in kinds.items() if isinstance(node := self.places[index][3], ast.Name)}
        for index, (_, field, _, node) in enumerate(self.places):
            texts = {ast.unparse(node)}
            value = node.value if isinstance(node, ast.AugAssign) else node
            site = next(place for place, one in enumerate(self.places) if one[3] is value)
            for other in others(node, field, names, kinds.get(index, ""), own):
                if (text := ast.unparse(other)) not in texts:
                    texts.add(text)
                    key = f"{self.name}: {ast.unparse(node)} -> {text}"
                    seen[key] += 1
                    title = f"{text} instead of {ast.unparse(node)} in {self.name}"
                    fix = f"compute {ast.unparse(node)}, as in {self.name}"
                    yield Mutant(self, f"{key} #{seen[key]}" if seen[key] > 1 else key, title, fix, index, site, other)

    def with_(self, index: int, other: ast.AST) -> CodeType:
        """The code with another expression or statement in the place of this index."""
        place = self.places[index]
        put(place, other)
        try:
            return self._compiled()
        finally:
            put(place, place[-1])

    def _compiled(self) -> CodeType:
        found: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(self.tree), self.name, "exec"), dict(self.raw.__globals__), found)
        code: CodeType = found[self.definition.name].__code__
        return code


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeChange(Alteration):
    """A mutant as an alteration."""

    mutant: Mutant

    generated: str = "change of one expression"
    writes = True

    @property
    def name(self) -> str:
        """The change and its function."""
        return f"the reference with {self.title}"

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """Runs the reference with the changed function. Raises ValueError whatever that raises."""
        try:
            with swapped(self.mutant.function, self.mutant.code(), last_of=last_of):
                yield
        except Exception as error:
            raise ValueError(f"{self.id}: {error}") from error


def code_changes(case: Case) -> list[list[Alteration]]:
    """The code changes that a float64 case runs, by function, outermost functions first.

    Gradients have only the changes of the backward pass.
    """
    backward = bool(forward_of(case.component))
    called = [one for one in _called(case) if not backward or BACKWARD in one.name]
    with reached(called) as sites:
        components.answer(case)
    return [
        [_change(case, mutant) for mutant in one.mutants(kinds) if mutant.site in kinds] for one in called if (kinds := sites[one.name])
    ]


def _change(case: Case, mutant: Mutant) -> Alteration:
    fix = dict.fromkeys(FRAMEWORKS, mutant.fix)
    return CodeChange(id=mutant.key, title=mutant.title, component=case.component, fix=fix, replaces={}, mutant=mutant)


def _called(case: Case) -> list[Function]:
    """The functions that the reference calls for a case, the outermost first; without its
    arithmetic, which rounding errors vary.
    """
    depths, depth = dict[CodeType, int](), 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal depth
        if event == "call":
            depth += 1
            depths[frame.f_code] = min(depth, depths.get(frame.f_code, depth))
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        components.answer(case)
    finally:
        sys.setprofile(before)
    found = [one for one in functions() if one.raw.__code__ in depths and not one.name.startswith("arithmetic.")]
    return sorted(found, key=lambda one: depths[one.raw.__code__])


@functools.cache
def functions() -> list[Function]:
    """All functions of the reference, without validation and `EXCLUDED` modules."""
    found = []
    for module in (module_of(info.name) for info in pkgutil.iter_modules(reference_numpy.__path__)):
        classes: list[Any] = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
        room = module.__name__.rpartition(".")[2]
        for owner in (module, *classes):
            prefix = ".".join([room, *[owner.__name__] * (owner is not module)])
            for name, value in vars(owner).items():
                raw, path = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value)), f"{prefix}.{name}"
                own = inspect.isfunction(raw) and raw.__code__.co_filename == module.__file__ and not raw.__code__.co_freevars
                left_out = name.startswith(("__", "need", "_conflicts")) or name in (*CASTS, "to_dict")
                if own and not left_out and (room not in EXCLUDED or path in INCLUDED):
                    found.append(Function(path, raw))
    return found


@contextlib.contextmanager
def swapped(function: Function, code: CodeType, **names: Any) -> Iterator[None]:
    """Runs the function with other code, and with more names in its module."""
    before, function.raw.__code__ = function.raw.__code__, code
    function.raw.__globals__.update(names)
    try:
        yield
    finally:
        function.raw.__code__ = before
        for name in names:
            function.raw.__globals__.pop(name, None)


@contextlib.contextmanager
def reached(meant: Iterable[Function]) -> Iterator[dict[str, dict[int, str]]]:
    """Yields a mapping that collects the reached sites of these functions, with the kind of their
    last value.
    """
    found: dict[str, dict[int, str]] = {one.name: {} for one in meant}

    def note(function: str, index: int, value: Any) -> Any:
        found[function][index] = _kind(value)
        return value

    with contextlib.ExitStack() as stack:
        for one in functions():
            if one.name in found:
                stack.enter_context(swapped(one, one.noted, **{REACHED: note}))
        yield found


def _kind(value: Any) -> str:
    """The dtype and shape of an array, a string with its type, else only the type."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"str {value}" if isinstance(value, str) else type(value).__name__


def last_of(rows: Array, index: Array, size: int) -> Array:
    """`arithmetic.scatter_add` that keeps only the last of several rows with the same index."""
    result = np.zeros((size, rows.shape[-1]), dtype=rows.dtype)
    result[index.reshape(-1)] = rows.reshape(-1, rows.shape[-1])
    return result
