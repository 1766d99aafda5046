"""Code changes: one expression or statement of one function of the reference is another one.

Not changed, since no output in float64 shows it: validation (`EXCLUDED`, and statements that only
reject arguments), error messages, annotations, casts, and irrelevant keywords.
"""

import ast
import contextlib
import copy
import dataclasses
import functools
import inspect
import pkgutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import reference_numpy

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import FRAMEWORKS
from ...expectation import components
from ...expectation.components import forward_of, module_of
from ...expectation.paths import Paths
from .expressions import CASTS, call, name_of, others, places, put
from .rewrites import HELPERS, Kind, rewrites, sizes_of, successive

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
    expression or statement; site: that of its value. other: what replaces it. further: an index and
    what is there then, if two places change. rewrites: whether it follows from the value in a run.
    """

    function: "Function"
    key: str
    title: str
    fix: str
    place: int
    site: int
    other: ast.AST
    further: tuple[tuple[int, ast.AST], ...] = ()
    rewrites: bool = False

    def code(self) -> CodeType:
        """The code of the changed function."""
        return self.function.with_(self.place, self.other, *self.further)


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

    def mutants(self, kinds: Mapping[int, Kind] | None = None) -> Iterator[Mutant]:
        """Yields the mutants; equal changes of a function are numbered.

        kinds: of values in a run, by site. With them, a name is also replaced with others whose
        value has the same kind, and a whole number is moved by one.
        """
        kinds = kinds or {}
        seen = Counter[str]()
        stored = [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        names = [*dict.fromkeys([*(one.arg for one in self.definition.args.args), *stored])]
        own = {node.id: kind.text for index, kind in kinds.items() if isinstance(node := self.places[index][3], ast.Name)}
        for index, (_, field, _, node) in enumerate(self.places):
            texts = {ast.unparse(node)}
            value = node.value if isinstance(node, ast.AugAssign) else node
            site = next(place for place, one in enumerate(self.places) if one[3] is value)
            for other in others(node, field, names, kinds.get(index, Kind()).text, own):
                if (text := ast.unparse(other)) not in texts:
                    texts.add(text)
                    key = f"{self.name}: {ast.unparse(node)} -> {text}"
                    seen[key] += 1
                    title = f"{text} instead of {ast.unparse(node)} in {self.name}"
                    fix = f"compute {ast.unparse(node)}, as in {self.name}"
                    yield Mutant(self, f"{key} #{seen[key]}" if seen[key] > 1 else key, title, fix, index, site, other)

    def rewritten(self, kinds: Mapping[int, Kind], sizes: Mapping[str, int]) -> Iterator[Mutant]:
        """Yields the rewrites, given the kinds of values in a run, by site, and a model's sizes."""
        found = {self.places[index][3]: kind for index, kind in kinds.items()}
        index_of = {node: index for index, (*_, node) in enumerate(self.places)}

        def kind_of(node: ast.AST) -> Kind:
            return found.get(node, Kind())

        def mutant(node: ast.AST, other: ast.AST, title: str, key: str = "", *further: tuple[int, ast.AST]) -> Mutant:
            fix, index = f"compute {ast.unparse(node)}, as in {self.name}", index_of[node]
            return Mutant(self, key or f"{self.name}: {title}", f"{title} in {self.name}", fix, index, index, other, further, True)

        for node in found:
            for other, words, anywhere in rewrites(node, kind_of, sizes) if isinstance(node, ast.expr) else ():
                title = f"{words}: {ast.unparse(node)}" if words else f"{ast.unparse(other)} instead of {ast.unparse(node)}"
                yield mutant(node, other, title, words * anywhere)
        assigned = [one.value for one in ast.walk(self.tree) if isinstance(one, ast.Assign) and one.value in found]
        for before in (one for one in assigned if isinstance(one, ast.Call) and name_of(one) not in CASTS):
            for after in (one for one in found if isinstance(one, ast.expr) and one.lineno > (before.end_lineno or 0)):
                exchanged = successive(before, after)
                if exchanged and kind_of(after).axes and kind_of(after) == kind_of(exchanged[1]):
                    other, value = exchanged
                    title = f"{ast.unparse(after)} before {ast.unparse(before)} instead of after it"
                    yield mutant(before, other, title, "", (index_of[after], value))

    def with_(self, index: int, other: ast.AST, *further: tuple[int, ast.AST]) -> CodeType:
        """The code with another expression or statement in the place of this index, and further."""
        changed = [(self.places[place], node) for place, node in ((index, other), *further)]
        for place, node in changed:
            put(place, node)
        try:
            return self._compiled()
        finally:
            for place, _ in changed:
                put(place, place[-1])

    def _compiled(self) -> CodeType:
        found: dict[str, Any] = {}
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of a change that cannot run
            changed = compile(ast.fix_missing_locations(self.tree), self.name, "exec")
        exec(changed, dict(self.raw.__globals__), found)
        code: CodeType = found[self.definition.name].__code__
        return code


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeChange(Alteration):
    """A mutant as an alteration. config: a model's, for code that computes sizes."""

    mutant: Mutant
    config: Any = None

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
            with swapped(self.mutant.function, self.mutant.code(), **HELPERS, **{"config": self.config} if self.config else {}):
                yield
        except Exception as error:
            raise ValueError(f"{self.id}: {error}") from error


def code_changes(case: Case) -> list[list[Alteration]]:
    """The code changes that a float64 case runs: the rewrites, then the others by function,
    outermost functions first.

    Gradients have only the changes of the backward pass.
    """
    backward = bool(forward_of(case.component))
    called = [one for one in _called(case) if not backward or BACKWARD in one.name]
    with reached(called) as sites:
        components.answer(case)
    sizes = sizes_of(case.config)
    found = [[one for function in called for one in function.rewritten(sites[function.name], sizes)]]
    found += [[one for one in function.mutants(kinds) if one.site in kinds] for function in called if (kinds := sites[function.name])]
    return [[_change(case, one) for one in own] for own in found]


def _change(case: Case, mutant: Mutant) -> Alteration:
    fix = dict.fromkeys(FRAMEWORKS, mutant.fix)
    change = CodeChange(id=mutant.key, title=mutant.title, component=case.component, fix=fix, replaces={}, mutant=mutant)
    if not mutant.rewrites or "config." not in ast.unparse(mutant.other):
        return change
    return dataclasses.replace(change, of_case=lambda case: dataclasses.replace(change, config=case.config))


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
def reached(meant: Iterable[Function]) -> Iterator[dict[str, dict[int, Kind]]]:
    """Yields a mapping that collects the reached sites of these functions, with the kind of their
    last value; numbers that change have none.
    """
    found: dict[str, dict[int, Kind]] = {one.name: {} for one in meant}

    def note(function: str, index: int, value: Any) -> Any:
        kind, before = Kind.of(value), found[function].get(index)
        found[function][index] = kind if not before or before.number == kind.number else kind._replace(number=None)
        return value

    with contextlib.ExitStack() as stack:
        for one in functions():
            if one.name in found:
                stack.enter_context(swapped(one, one.noted, **{REACHED: note}))
        yield found
