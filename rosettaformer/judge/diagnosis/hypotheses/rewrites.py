"""Rewrites: changes of an expression that follow from its value in a run.

Two nested operations are exchanged; a size is another size of the model; offsets count blocks; a
function runs over another axis; indices and the values that belong to them are permuted apart; one
entry of an axis stands for all; a selection has a limit.
"""

import ast
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from reference_numpy.arrays import Array

from .expressions import CASTS, call, name_of

# sizes of a model, one of which a port may use in the place of another
SIZES = """
    config.key_size config.value_size config.model_width config.model_width//config.heads config.heads config.key_value_heads
    config.heads//config.key_value_heads
""".split()  # noqa: SIM905 - a list of names reads better in lines
ALONG = ("softmax", "largest")  # functions over the last axis
LIMITS = (1.0, 1.25, 1.5, 2.0)  # times the mean, that a selection may be limited to
SUMS, PRODUCTS = (ast.Add, ast.Sub), (ast.Mult, ast.Div)


class Kind(NamedTuple):
    """A value in a run.

    text: the dtype and shape of an array, a string with its type, else only the type. number: a
    whole number. axes: the number of axes. paired: whether the rows of the last axis have the same
    number of entries other than 0, and others: values of chosen indices.
    """

    text: str = ""
    number: int | None = None
    axes: int = 0
    paired: bool = False

    @classmethod
    def of(cls, value: Any) -> "Kind":
        """Returns the kind of a value."""
        if isinstance(value, np.ndarray):
            return cls(f"{value.dtype} {value.shape}", axes=value.ndim, paired=value.dtype.kind == "f" and _count(value) > 0)
        number = value if type(value) is int else None
        return cls(f"str {value}" if isinstance(value, str) else type(value).__name__, number)


class Rewrite(NamedTuple):
    """The replacement of an expression. words: what the change does; empty if its code says so. anywhere:
    whether it is the same bug in whichever expression.
    """

    other: ast.expr
    words: str = ""
    anywhere: bool = False


def sizes_of(config: Any) -> dict[str, int]:
    """Returns the distinct sizes of a model by the expressions that compute them."""
    found = {text: eval(text, {"config": config}) for text in SIZES}
    return {text: value for text, value in found.items() if value and value not in [*found.values()][: [*found].index(text)]}


def rewrites(node: ast.expr, kind_of: Callable[[ast.AST], Kind], sizes: Mapping[str, int]) -> Iterator[Rewrite]:
    """Yields the rewrites of an expression. kind_of: returns the kind of an expression's value."""
    kind = kind_of(node)
    yield from _exchanged(node, kind_of)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and kind.number in sizes.values():
        yield from (Rewrite(ast.parse(text, mode="eval").body) for text, value in sizes.items() if value != kind.number)
    if isinstance(node, ast.Call) and name_of(node) not in CASTS:
        yield from _of_call(node, kind)


def operand(node: ast.AST) -> ast.expr | None:
    """The value that an operation changes: its left side or its first argument."""
    if isinstance(node, ast.BinOp):
        return node.left
    if not isinstance(node, ast.Call) or name_of(node) in CASTS or not node.args or isinstance(node.args[0], ast.Starred):
        return None
    return node.args[0]


def on(node: ast.expr, value: ast.expr) -> ast.expr:
    """The same operation on another value."""
    if isinstance(node, ast.BinOp):
        return ast.BinOp(value, node.op, node.right)
    assert isinstance(node, ast.Call)
    return ast.Call(node.func, [value, *node.args[1:]], node.keywords)


def _exchanged(node: ast.expr, kind_of: Callable[[ast.AST], Kind]) -> Iterator[Rewrite]:
    """`g(f(x))` for `f(g(x))`, if all three have the same shape."""
    inner = operand(node)
    value = operand(inner) if inner else None
    if inner is None or value is None or not kind_of(node).axes or not kind_of(node) == kind_of(inner) == kind_of(value):
        return
    operators = [type(one.op) for one in (node, inner) if isinstance(one, ast.BinOp)]
    if not any(len(operators) == 2 and {*operators} <= {*kind} for kind in (SUMS, PRODUCTS)):
        yield Rewrite(on(inner, on(node, value)))


def _of_call(node: ast.Call, kind: Kind) -> Iterator[Rewrite]:
    name = name_of(node)
    if name == "arange" and len(node.args) == 1 and isinstance(blocks := node.args[0], ast.BinOp) and isinstance(blocks.op, ast.FloorDiv):
        yield Rewrite(ast.Call(node.func, [ast.Constant(0), blocks.left, blocks.right], node.keywords))
    if name == "arange" and len(node.args) == 3:
        yield Rewrite(ast.Call(node.func, [ast.BinOp(node.args[1], ast.FloorDiv(), node.args[2])], node.keywords))
    if name == "nonzero" and isinstance(node.func, ast.Attribute) and isinstance(part := node.func.value, ast.Subscript):
        for factor in LIMITS:
            for rounded in ("ceil", "floor"):
                limited = call("_limited", node, part.value, ast.Constant(factor), ast.Constant(rounded))
                yield Rewrite(limited, f"at most {factor:g} times the mean number of entries are used ({rounded}), the first ones")
    if name in ALONG and kind.axes > 1:
        for axis in range(kind.axes - 1):
            words = f"over axis {axis} instead of the last one"
            yield Rewrite(call("_over", ast.Constant(axis), node.func, *node.args), words)
            if name == "softmax" and len(node.args) > 1:
                slots = call("_over_slots", ast.Constant(axis), node.func, *node.args)
                yield Rewrite(slots, f"over axis {axis} of the chosen entries, sorted, instead of over the chosen entries")
    if kind.paired:
        yield from (Rewrite(call("_repaired", ast.Constant(words), node), words, True) for words in PAIRED)
    if kind.axes > 1 and kind.text.startswith(("bool", "int")):
        token = 1 if kind.axes == 2 else kind.axes - 2
        for axis, at, words in ((0, 0, "first row"), (token, 0, "first token"), (token, -1, "last token")):
            yield Rewrite(call("_spread", ast.Constant(axis), ast.Constant(at), node), f"the {words}'s entry stands for all")


def _count(values: Array) -> int:
    """The number of entries of every last axis that are not 0; 0 if it is not the same, or all."""
    counts = np.count_nonzero(values, axis=-1) if values.ndim > 1 else np.zeros(1, int)
    count = int(counts.reshape(-1)[0]) if counts.size else 0
    return count if 0 < count < values.shape[-1] and (counts == count).all() else 0


def _limited(selected: tuple[Array, ...], values: Array, factor: float, rounded: str) -> tuple[Array, ...]:
    """The first entries of a selection, at most this many times the mean of all selections."""
    most = getattr(math, rounded)(factor * np.count_nonzero(values) / values.shape[-1])
    return tuple(one[:most] for one in selected)


def _over(axis: int, function: Callable, values: Array, *rest: Any) -> Any:
    """A function over another axis than the last."""
    swapped = [np.swapaxes(one, axis, -1) if np.ndim(one) == values.ndim else one for one in (values, *rest)]
    return np.swapaxes(function(*swapped), axis, -1)


def _over_slots(axis: int, function: Callable, values: Array, chosen: Array) -> Array:
    """A function over another axis of the chosen entries, which are sorted, largest first."""
    order = _order(np.where(chosen, values, -np.inf), _count(chosen))
    found = np.zeros_like(values)
    np.put_along_axis(found, order, _over(axis, function, np.take_along_axis(values, order, -1)), -1)
    return found


def _order(values: Array, count: int) -> Array:
    """The indices of the largest entries of every last axis, largest first."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :count]


def _repaired(words: str, values: Array) -> Array:
    """The entries that are not 0 at other indices. Raises ValueError if their number varies."""
    if not (count := _count(values)):
        raise ValueError("every row must have the same number of entries; got others")
    order = _order(np.where(values == 0, -np.inf, values), count)
    found = np.zeros_like(values)
    np.put_along_axis(found, PAIRED[words](order), np.take_along_axis(values, order, -1), -1)
    return found


# what a port may do to the indices alone, largest value first, and not to the values
PAIRED: dict[str, Callable[[Array], Array]] = {
    "the indices are sorted, and the values that belong to them are not": lambda order: np.sort(order, axis=-1),
    "the indices are reversed, and the values that belong to them are not": lambda order: order[..., ::-1],
    "all rows have the indices of the first row, with their own values": lambda order: np.broadcast_to(order[:1], order.shape),
    "all tokens have the indices of the first one, with their own values": lambda order: np.broadcast_to(order[:, :1], order.shape),
}


def _spread(axis: int, at: int, values: Array) -> Array:
    """One entry of an axis in the place of all."""
    return np.broadcast_to(np.take(values, [at], axis), values.shape).copy()


def last_of(rows: Array, index: Array, size: int) -> Array:
    """`arithmetic.scatter_add` that keeps only the last of several rows with the same index."""
    result = np.zeros((size, rows.shape[-1]), dtype=rows.dtype)
    result[index.reshape(-1)] = rows.reshape(-1, rows.shape[-1])
    return result


HELPERS: dict[str, Callable] = {one.__name__: one for one in (_limited, _over, _over_slots, _repaired, _spread, last_of)}


def successive(before: ast.Call, after: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The two operations `v = before(.., v, ..)` and `after(v)` in the other order; None if `after`
    is on another variable.
    """
    value = operand(after)
    if not isinstance(value, ast.Name) or value.id not in [one.id for one in before.args if isinstance(one, ast.Name)]:
        return None
    inner = copy.deepcopy(after)
    arguments = [inner if isinstance(one, ast.Name) and one.id == value.id else one for one in before.args]
    return ast.Call(before.func, arguments, before.keywords), value
