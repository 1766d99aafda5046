"""Mutants of the reference, derived from its syntax: one operation, branch, comparison, argument or constant of a function changes."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rosettaformer.judge.expectation.components import module_of

OPERATORS: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
SIBLINGS = {"cos": "sin", "floor": "ceil", "min": "max", "minimum": "maximum", "sqrt": "square"}
SIBLINGS |= {other: name for name, other in SIBLINGS.items()}
REFUSALS = ("checks.", "known(", "config.need", "raise ")  # prefixes of statements that only reject arguments
Site = tuple[ast.AST, str, int | None, ast.expr]  # a parent, its field, the index in it, and the present expression


@dataclass(frozen=True)
class Mutant:
    """title: the function, the line within it, and the change. replaces: in the form that `patched` takes."""

    title: str
    replaces: Mapping[str, Callable]


def mutants_of(function: str) -> Iterator[Mutant]:
    """Yields every mutant of a function of `reference_numpy`, named as in `patched`."""
    path, _, attribute = function.rpartition(".")
    module, *inner = path.split(".")
    owner: Any = module_of(module)
    scope = vars(owner)
    for name in inner:
        owner = getattr(owner, name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(owner, attribute))))
    for parent, field, index, node in list(_sites(tree.body[0])):
        for other in _others(node):
            _put(parent, field, index, other)
            found: dict[str, Any] = {}
            exec(compile(ast.fix_missing_locations(tree), function, "exec"), scope, found)
            _put(parent, field, index, node)
            title = f"{function}:{node.lineno}: {ast.unparse(node)} -> {ast.unparse(other)}"
            yield Mutant(title, {function: _instead(found[attribute])})


def _instead(mutant: Callable) -> Callable:
    return lambda original, *args, **options: mutant(*args, **options)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.expr) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _sites(parent: ast.AST) -> Iterator[Site]:
    """Yields the expressions below a node, except annotations, docstrings and argument checks."""
    for field, value in ast.iter_fields(parent):
        if field in ("args", "returns", "annotation", "decorator_list") and isinstance(parent, ast.FunctionDef | ast.AnnAssign):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.Raise) or (isinstance(child, ast.Expr) and ast.unparse(child).startswith((*REFUSALS, "'", '"'))):
                continue
            if isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store):
                yield parent, field, index, child
            yield from _sites(child)


def _others(node: ast.expr) -> Iterator[ast.expr]:
    """Yields replacements of an expression."""
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        yield from (ast.BinOp(node.left, other(), node.right) for other in OPERATORS.get(type(node.op), ()))
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from (ast.Compare(node.left, [other()], node.comparators) for other in OPERATORS.get(type(node.ops[0]), ()))
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value: Any = node.value
        yield from (ast.Constant(one) for one in ([not value] if value in (True, False) and type(value) is bool else _near(value)))
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _near(value: Any) -> list[Any]:
    return [value + 1, value - 1] if isinstance(value, int) else [value * 1.25, value * 0.8]


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """Yields an argument instead of the call, the call of a sibling function, None for an argument, and the call without a keyword."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    yield from (argument for argument in node.args if not isinstance(argument, ast.Starred | ast.Constant))
    if isinstance(node.func, ast.Attribute):
        if not isinstance(node.func.value, ast.Name) or node.func.value.id.endswith(("_btd", "_bthk", "_j", "_bt")):
            yield node.func.value
        if name in SIBLINGS:
            yield ast.Call(ast.Attribute(node.func.value, SIBLINGS[name], ast.Load()), node.args, node.keywords)
    elif name in SIBLINGS:
        yield ast.Call(ast.Name(SIBLINGS[name], ast.Load()), node.args, node.keywords)
    for index, argument in enumerate(node.args):
        if isinstance(argument, ast.Name):
            yield ast.Call(node.func, [*node.args[:index], ast.Constant(None), *node.args[index + 1 :]], node.keywords)
    for index in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])
