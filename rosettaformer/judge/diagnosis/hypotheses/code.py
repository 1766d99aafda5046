"""Code changes: one expression or statement of one function of the reference is another one.

Not changed, since no output in float64 shows it: validation (`EXCLUDED`, and statements that only
reject arguments), error messages, annotations, casts (`CASTS`), and `IRRELEVANT` keywords.
"""

import ast
import contextlib
import copy
import functools
import inspect
import itertools
import pkgutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import numpy as np

import reference_numpy
from reference_numpy import config
from reference_numpy.arrays import Array

from ...case import Case
from ...catalogue import Alteration
from ...catalogue.alteration import FRAMEWORKS
from ...expectation import components
from ...expectation.components import forward_of, module_of
from ...expectation.paths import Paths

EXCLUDED = """
    arrays checks fields int8 layout parameters presets recipe sharding sites strategy suggestions
""".split()  # noqa: SIM905 - a list of names reads better in lines
INCLUDED = ("parameters.initialise", "parameters.initial_value")  # of these
CASTS = ("astype", "copy", "is_half", "upcast_half", "number", "type", "asarray", "str", "int", "float", "tolist")
IRRELEVANT = ("copy", "optimize", "strict", "dtype")
COMMUTATIVE = ("max", "min", "maximum", "minimum", "combine_masks", "clip")
# beginnings of statements that only reject arguments
REFUSALS = (
    "checks.", "known(", "config.need", "raise ", "assert ", "'", '"', "kind = str(", "shapes = ", "least, most = ", "last, real = ",
)  # fmt: skip
OPERATORS: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
BEYOND = {ast.Lt: -1, ast.LtE: 1, ast.Gt: 1, ast.GtE: -1}  # moves the limit to the side to which the operator's change does not
SIBLINGS = {"cos": "sin", "floor": "ceil", "min": "max", "minimum": "maximum", "sqrt": "square", "any": "all"}
SIBLINGS |= {other: name for name, other in SIBLINGS.items()}
# names of the config, its parts, and arguments that a model either has or has not, whatever the text
CHOICES = set("""
    activation activation_name attend_to_memory base by_head cache cap cast cast_before_scale causal config drop dtype getattr
    groups head heads int isinstance keep keep_bhts keep_br keep_btd keep_btf kind layer LayerKind layout len local max memory
    memory_bsd memory_mask_bhts name np of_output one_plus one_plus_scale original own parameters pooler_activation rate rotary
    rotates rotation round_scale scale scale_embedding scaling Scores scores segment_bt self side size source source_mask_bs start
    target text token window
""".split())  # noqa: SIM905  # fmt: skip
BACKWARD = "_vjp"  # in the names of functions of the backward pass
REDUCTIONS = {
    "arithmetic.scatter_add": "last_of", "arithmetic.sum": "arithmetic.mean", "arithmetic.mean": "arithmetic.sum",
    "np.sum": "np.mean", "np.mean": "np.sum",
}  # fmt: skip
REACHED, COMPARED, UNUSABLE = "_reached", "_compared", "_unusable"  # names that mutated functions call
Changed = tuple[ast.AST, ast.AST]  # the node with the values before and after compared, and with a value that is of no use
Place = tuple[ast.AST, str, int | None, ast.AST]  # a parent, its field, the index in it, and the present node


@dataclass(frozen=True)
class Mutant:
    """One change of a function.

    key: the function and the change, without line numbers. site: the index of the changed
    expression, or of the value of a changed statement. choice: whether it is about the config or
    optional arguments only. codes: with the change; with the values before and after compared; and
    with a value in their place that nothing can compute with.
    """

    function: "Function"
    key: str
    title: str
    fix: str
    site: int
    choice: bool
    codes: tuple[Callable[[], CodeType], ...]


class Function:
    """A function or method of the reference, by its name as in `patched`: `module.function`,
    `module.Class.method`.
    """

    def __init__(self, name: str, raw: Any) -> None:
        self.name, self.raw = name, raw
        self.tree = ast.parse(textwrap.dedent(inspect.getsource(raw)))
        self.definition.decorator_list = []
        self.places = list(_places(self.definition))

    @property
    def definition(self) -> Any:
        return self.tree.body[0]

    @functools.cached_property
    def noted(self) -> CodeType:
        """The code with every expression noted, by its index, after it is evaluated."""
        twin = copy.copy(self)
        twin.tree = copy.deepcopy(self.tree)
        for index, place in reversed([*enumerate(_places(twin.definition))]):
            if isinstance(place[-1], ast.expr):
                _put(place, _call(REACHED, ast.Constant(self.name), ast.Constant(index), place[-1]))
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
            decided = node.test if isinstance(node, ast.IfExp) else node
            choice = {one.id for one in ast.walk(decided) if isinstance(one, ast.Name)} <= CHOICES
            for other, changed in itertools.chain(_others(node, field, names), _alike(node, kinds.get(index, ""), own)):
                if (text := ast.unparse(other)) not in texts:
                    texts.add(text)
                    key = f"{self.name}: {ast.unparse(node)} -> {text}"
                    seen[key] += 1
                    codes = tuple(functools.partial(self._with, index, one) for one in (other, *changed))
                    title = f"{text} instead of {ast.unparse(node)} in {self.name}"
                    fix = f"compute {ast.unparse(node)}, as in {self.name}"
                    yield Mutant(self, f"{key} #{seen[key]}" if seen[key] > 1 else key, title, fix, site, choice, codes)

    def _with(self, index: int, other: ast.AST) -> CodeType:
        place = self.places[index]
        _put(place, other)
        try:
            return self._compiled()
        finally:
            _put(place, place[-1])

    def _compiled(self) -> CodeType:
        found: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(self.tree), self.name, "exec"), dict(self.raw.__globals__), found)
        code: CodeType = found[self.definition.name].__code__
        return code


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeChange(Alteration):
    """A mutant as an alteration."""

    mutant: Mutant

    generated, writes = "change of one expression", True

    @property
    def name(self) -> str:
        """The change and its function."""
        return f"the reference with {self.title}"

    @contextlib.contextmanager
    def altering(self, paths: Paths) -> Iterator[None]:
        """Runs the reference with the changed function. Raises ValueError whatever that raises."""
        try:
            with swapped(self.mutant.function, self.mutant.codes[0](), last_of=last_of):
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


@contextlib.contextmanager
def compared(mutant: Mutant) -> Iterator[list[bool]]:
    """Yields a list that collects whether the expression before and after the change has the same
    value, each time.
    """
    found: list[bool] = []

    def note(before: Any, after: Any) -> Any:
        found.append(_same(before, after, mutant.choice))
        return before

    with swapped(mutant.function, mutant.codes[1](), **{COMPARED: note}):
        yield found


@contextlib.contextmanager
def without(mutant: Mutant) -> Iterator[list[bool]]:
    """Runs the function without the changed value; computing with it raises."""
    with swapped(mutant.function, mutant.codes[2](), **{UNUSABLE: _Unusable()}):
        yield []


class _Unusable:
    """A value that can be passed on and asked whether it is None, and nothing else."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError

    __bool__ = __eq__ = __iter__ = __len__ = __getitem__ = __call__ = __array__ = __index__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, other: Any, choice: bool) -> bool:
    """Whether two values are the same object; for choices, also equal or both off."""
    if one is other and not isinstance(one, bool | int | str):
        return True
    if isinstance(one, tuple | list) and type(one) is type(other) and len(one) == len(other):
        return all(_same(*pair, choice) for pair in zip(one, other, strict=True))
    plain = all(isinstance(value, bool | int | float | str | None) for value in (one, other))
    return choice and plain and (one == other or not (one or other))


def _put(place: Place, node: ast.AST) -> None:
    parent, field, index, _ = place
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments], [])


def _places(parent: ast.AST) -> Iterator[Place]:
    """Yields expressions and augmented assignments below a node, parents first, except annotations,
    defaults, docstrings and checks.
    """
    for field, value in ast.iter_fields(parent):
        if field in ("args", "returns", "annotation", "decorator_list") and not isinstance(parent, ast.Call):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            refused = isinstance(child, ast.stmt) and _refuses(child)
            if refused or not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or getattr(child, "arg", "") in IRRELEVANT:
                continue
            if isinstance(child, ast.AugAssign) or (isinstance(child, ast.expr) and _is_value(child)):
                yield parent, field, index, child
            yield from _places(child)


def _refuses(node: ast.stmt) -> bool:
    """Whether a statement only rejects arguments, or describes them for that."""
    if isinstance(node, ast.If):
        return not node.orelse and all(map(_refuses, node.body))
    return ast.unparse(node).startswith(REFUSALS)


def _is_value(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return not any(isinstance(one, ast.Slice | ast.Starred) for one in parts) and not isinstance(getattr(node, "ctx", None), ast.Store)


def _others(node: ast.AST, field: str, names: list[str]) -> Iterator[tuple[ast.AST, Changed]]:
    """Yields replacements of an expression or a statement: branches, other expressions, other
    arguments.
    """
    unused = ast.Name(UNUSABLE, ast.Load())
    if field == "test" or (field in ("ifs", "values") and not isinstance(node, ast.Constant)):
        for forced in (ast.Constant(True), ast.Constant(False)):
            yield forced, (_call(COMPARED, _call("bool", node), forced), unused)
    if isinstance(node, ast.IfExp):
        for value, other in ((True, node.body), (False, node.orelse)):
            test = _call(COMPARED, _call("bool", node.test), ast.Constant(value))
            yield other, (ast.IfExp(test, node.body, node.orelse), unused)
    for instead in _instead(node, names):
        yield instead, (_call(COMPARED, node, instead), unused)
    if not isinstance(node, ast.Call) or _name(node) in CASTS:
        return

    def call(start: int, *others: ast.expr, end: int) -> ast.Call:
        return ast.Call(node.func, [*node.args[:start], *others, *node.args[end:]], node.keywords)

    for index, argument in enumerate(node.args):
        if isinstance(argument, ast.Name):
            nothing, end = ast.Constant(None), index + 1
            yield call(index, nothing, end=end), (call(index, _call(COMPARED, argument, nothing), end=end), call(index, unused, end=end))
    for index, (one, after) in enumerate(itertools.pairwise(node.args) if _name(node) not in COMMUTATIVE else ()):
        both = _call(COMPARED, ast.Tuple([one, after], ast.Load()), ast.Tuple([after, one], ast.Load()))
        compared = call(index, ast.Starred(both, ast.Load()), end=index + 2)
        yield call(index, after, one, end=index + 2), (compared, call(index, unused, unused, end=index + 2))


def _alike(node: ast.AST, kind: str, own: Mapping[str, str]) -> Iterator[tuple[ast.AST, Changed]]:
    """Yields other values of the same kind: whole numbers moved by one, other names, other choices
    of the config, whole arrays, and other reductions.

    kind: that of the node's value; empty if unknown. own: that of each name's.
    """
    unused = ast.Name(UNUSABLE, ast.Load())
    others: list[ast.expr] = []
    if kind == "int" and isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
        others += [ast.BinOp(node, operator(), ast.Constant(1)) for operator in (ast.Add, ast.Sub)]
    if kind and isinstance(node, ast.Name):
        others += [ast.Name(name, ast.Load()) for name in own if own[name] == kind and name != node.id]
    if kind and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice | ast.Tuple):
        others.append(node.value)
    if kind.startswith("str ") and isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
        chosen = kind.removeprefix("str ")
        tables = [ast.Dict([ast.Constant(chosen)], [ast.Constant(one)]) for one in _choices(chosen)]
        others += [ast.Call(ast.Attribute(table, "get", ast.Load()), [node, node], []) for table in tables]
    if kind and isinstance(node, ast.Call):
        others += _reductions(node)
    for other in others:
        yield other, (_call(COMPARED, node, other), unused)


def _choices(chosen: str) -> list[str]:
    """The other names that an entry of the config with this name may have."""
    tables = [[*value] for name, value in vars(config).items() if name.isupper() and isinstance(value, Collection)]
    return [name for names in tables if chosen in names for name in names if isinstance(name, str) and name != chosen]


def _reductions(node: ast.Call) -> Iterator[ast.expr]:
    """Yields other ways to reduce several values to one."""
    if other := REDUCTIONS.get(ast.unparse(node.func)):
        yield ast.Call(ast.parse(other, mode="eval").body, node.args, node.keywords)


def last_of(rows: Array, index: Array, size: int) -> Array:
    """`arithmetic.scatter_add` that keeps only the last of several rows with the same index."""
    result = np.zeros((size, rows.shape[-1]), dtype=rows.dtype)
    result[index.reshape(-1)] = rows.reshape(-1, rows.shape[-1])
    return result


def _instead(node: ast.AST, names: list[str]) -> Iterator[ast.AST]:
    """Yields replacements except branches and calls with other arguments."""
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        yield from (ast.BinOp(node.left, other(), node.right) for other in OPERATORS.get(type(node.op), ()))
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        (operator,), (limit,) = node.ops, node.comparators
        yield from (ast.Compare(node.left, [other()], [limit]) for other in OPERATORS.get(type(operator), ()))
        if type(operator) in BEYOND:
            yield ast.Compare(node.left, [operator], [ast.BinOp(limit, ast.Add(), ast.Constant(BEYOND[type(operator)]))])
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value: Any = node.value
        near = [not value] if isinstance(value, bool) else [value + 1, value - 1] if isinstance(value, int) else [value * 1.25, value * 0.8]
        yield from map(ast.Constant, near)
    elif isinstance(node, ast.Name):
        kind = node.id.rpartition("_")[2]
        yield from (ast.Name(one, ast.Load()) for one in names if one != node.id and "_" in one and one.rpartition("_")[2] == kind)
    elif isinstance(node, ast.Call) and _name(node) not in CASTS:
        yield from (argument for argument in node.args if not isinstance(argument, ast.Starred | ast.Constant))
        owner = getattr(node.func, "value", None)
        if owner and (not isinstance(owner, ast.Name) or "_" in owner.id):
            yield owner  # a method's array
        if other := SIBLINGS.get(_name(node)):
            yield ast.Call(ast.Attribute(owner, other, ast.Load()) if owner else ast.Name(other, ast.Load()), node.args, node.keywords)
        for index, keyword in enumerate(node.keywords):
            if keyword.arg not in IRRELEVANT:
                yield ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])


def _name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
