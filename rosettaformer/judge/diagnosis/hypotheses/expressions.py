"""Expressions of a function's code, and what a bug may put in their place."""

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reference_numpy import config

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
REDUCTIONS = {
    "arithmetic.scatter_add": "last_of", "arithmetic.sum": "arithmetic.mean", "arithmetic.mean": "arithmetic.sum",
    "np.sum": "np.mean", "np.mean": "np.sum",
}  # fmt: skip
Place = tuple[ast.AST, str, int | None, ast.AST]  # a parent, its field, the index in it, and the present node


def put(place: Place, node: ast.AST) -> None:
    parent, field, index, _ = place
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments], [])


def places(parent: ast.AST) -> Iterator[Place]:
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
            yield from places(child)


def _refuses(node: ast.stmt) -> bool:
    """Whether a statement only rejects arguments, or describes them for that."""
    if isinstance(node, ast.If):
        return not node.orelse and all(map(_refuses, node.body))
    return ast.unparse(node).startswith(REFUSALS)


def _is_value(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return not any(isinstance(one, ast.Slice | ast.Starred) for one in parts) and not isinstance(getattr(node, "ctx", None), ast.Store)


def others(node: ast.AST, field: str, names: list[str], kind: str, own: Mapping[str, str]) -> Iterator[ast.AST]:
    """Yields replacements of an expression or a statement: branches, other expressions, other
    arguments, other values of the same kind.

    names: of the function's variables. kind: that of the node's value; empty if unknown. own: that
    of each name's value.
    """
    if field == "test" or (field in ("ifs", "values") and not isinstance(node, ast.Constant)):
        yield from (ast.Constant(True), ast.Constant(False))
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    yield from _instead(node, names)
    if isinstance(node, ast.Call) and name_of(node) not in CASTS:
        yield from _with_other_arguments(node)
    if kind and isinstance(node, ast.expr):
        yield from _alike(node, kind, own)


def _with_other_arguments(node: ast.Call) -> Iterator[ast.Call]:
    """Yields the call with an argument that is None, and with two exchanged."""

    def call(start: int, *changed: ast.expr) -> ast.Call:
        return ast.Call(node.func, [*node.args[:start], *changed, *node.args[start + len(changed) :]], node.keywords)

    yield from (call(index, ast.Constant(None)) for index, argument in enumerate(node.args) if isinstance(argument, ast.Name))
    if name_of(node) not in COMMUTATIVE:
        yield from (call(index, after, one) for index, (one, after) in enumerate(itertools.pairwise(node.args)))


def _alike(node: ast.expr, kind: str, own: Mapping[str, str]) -> Iterator[ast.AST]:
    """Yields other values of this kind: whole numbers moved by one, other names, other choices of
    the config, whole arrays, and other reductions.
    """
    variable = not isinstance(node, ast.Constant)
    if kind == "int" and variable:
        yield from (ast.BinOp(node, operator(), ast.Constant(1)) for operator in (ast.Add, ast.Sub))
    if isinstance(node, ast.Name):
        yield from (ast.Name(name, ast.Load()) for name in own if own[name] == kind and name != node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice | ast.Tuple):
        yield node.value
    if kind.startswith("str ") and variable:
        chosen = kind.removeprefix("str ")
        tables = [ast.Dict([ast.Constant(chosen)], [ast.Constant(one)]) for one in _choices(chosen)]
        yield from (ast.Call(ast.Attribute(table, "get", ast.Load()), [node, node], []) for table in tables)
    if isinstance(node, ast.Call) and (other := REDUCTIONS.get(ast.unparse(node.func))):
        yield ast.Call(ast.parse(other, mode="eval").body, node.args, node.keywords)


def _choices(chosen: str) -> list[str]:
    """The other names that an entry of the config with this name may have."""
    tables = [[*value] for name, value in vars(config).items() if name.isupper() and isinstance(value, Collection)]
    return [name for names in tables if chosen in names for name in names if isinstance(name, str) and name != chosen]


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
    elif isinstance(node, ast.Call) and name_of(node) not in CASTS:
        yield from (argument for argument in node.args if not isinstance(argument, ast.Starred | ast.Constant))
        owner = getattr(node.func, "value", None)
        if owner and (not isinstance(owner, ast.Name) or "_" in owner.id):
            yield owner  # a method's array
        if other := SIBLINGS.get(name_of(node)):
            yield ast.Call(ast.Attribute(owner, other, ast.Load()) if owner else ast.Name(other, ast.Load()), node.args, node.keywords)
        for index, keyword in enumerate(node.keywords):
            if keyword.arg not in IRRELEVANT:
                yield ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])


def name_of(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
