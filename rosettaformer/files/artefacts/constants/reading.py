"""Collects the constants of a graph, and computes what depends on constants only."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

LIMIT = 1 << 20  # elements of the largest tensor that is read
FOLDED = 4096  # elements of the largest result that is computed
CONTRIBUTED = "com.microsoft"  # domain of ONNX Runtime's operators; attributes that a node omits are unknown
# why an operation's output is not deterministic, or not that of inference
DRAWS, DROPS = "draws random numbers", "drops values at random, as in training"
NORMS = "normalizes by the statistics of the batch, as in training"
PASSES = 8  # over nodes, which may not be in the order of the computation


class Constant(NamedTuple):
    """A number or table, and the node or tensor that holds it."""

    place: str
    value: np.ndarray


class Weight(NamedTuple):
    """A tensor of the file. read: whether its values are among the constants."""

    dtype: str
    shape: tuple[int, ...]
    read: bool


class Node(NamedTuple):
    """An operation.

    inputs, outputs: keys. bodies: the graphs that it runs, see `Constants.results`. random: why its
    output is random or not that of inference; else empty. switches: keys of numbers; if one is 0,
    the output is deterministic after all.
    """

    operation: str
    place: str
    inputs: Sequence[Hashable]
    outputs: Sequence[Hashable]
    bodies: Sequence[Hashable] = ()
    random: str = ""
    switches: Sequence[Hashable] = ()


@dataclass
class Constants:
    """The constants of a graph.

    values: every number and table. weights: tensors by name. operations: in lower case, alone and
    followed by each of their words ("gelu tanh"). longest: the largest side of an input, None if a
    side is dynamic. sides: the sides of inputs. opaque: an operator whose content is hidden.
    scales_fold: the converter multiplies scales into weights. from_shapes: a root or power of an
    input's size is taken. rounded: small tensors are quantized. products: for every graph, branch
    and body, the right factors of products in order, and whether each is transposed. casts: place
    and dtype of conversions. epsilons: places and values in fused norms. nodes: all operations, in
    file order. entries: function -> keys of its outputs. results: graph that a node runs -> keys of
    its outputs. held: arrays by key. reason: why nothing is known.
    """

    values: list[Constant] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    operations: set[str] = field(default_factory=set)
    sides: set[int] = field(default_factory=set)
    longest: int | None = 0
    opaque: str = ""
    scales_fold: bool = False
    from_shapes: bool = False
    rounded: bool = False
    products: list[list[tuple[str, bool]]] = field(default_factory=list)
    casts: list[tuple[str, str]] = field(default_factory=list)
    epsilons: list[tuple[str, float]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    entries: dict[str, Sequence[Hashable]] = field(default_factory=dict)
    results: dict[Hashable, Sequence[Hashable]] = field(default_factory=dict)
    reason: str = ""
    held: dict[Hashable, np.ndarray] = field(default_factory=dict)
    _known: dict[Hashable, np.ndarray | None] = field(default_factory=dict)

    def number(self, place: str, value: Any, key: Hashable = None) -> None:
        """Records a constant. key: by which nodes refer to it."""
        array = np.asarray(value)
        if array.dtype.kind in "OUSM":
            return
        if array.size:
            self.values.append(Constant(place, array))
        if key is not None:
            self.held[key] = array
            if array.size <= FOLDED:
                self._known[key] = array

    def weight(self, name: str, dtype: str, shape: Iterable[int], value: Callable[[], np.ndarray] | None, key: Hashable = None) -> None:
        """Records a tensor. value: reads it; called only for small tensors."""
        sizes = tuple(int(size) for size in shape)
        read = value is not None and int(np.prod(sizes, dtype=np.float64)) <= LIMIT
        self.weights[name] = Weight(dtype, sizes, read)
        if read and value is not None:
            self.number(name, value(), key)

    def input(self, shape: Iterable[int | None]) -> None:
        """Records the sizes of an input; None is dynamic."""
        for size in shape:
            if size is None or size < 0:
                self.longest = None
                continue
            self.sides.add(size)
            self.longest = None if self.longest is None else max(self.longest, size)

    def node(
        self, operation: str, place: str, inputs: Sequence[Hashable] = (), outputs: Sequence[Hashable] = (), words: Iterable[str] = (),
        **more: Any,
    ) -> None:  # fmt: skip
        """Records an operation. inputs, outputs: keys. words: texts in its attributes."""
        operation = operation.lower()
        self.operations |= {operation, *(f"{operation} {word.lower()}" for word in words)}
        self.nodes.append(Node(operation, place, inputs, outputs, **more))

    def value(self, key: Hashable) -> np.ndarray | None:
        """Returns the constant of a key; None if it is unknown or not constant."""
        return self.held.get(key) if key in self.held else self._known.get(key)

    def fold(self) -> None:
        """Adds the results of nodes whose inputs are constant."""
        pending = self.nodes
        for _ in range(PASSES):
            before, pending = pending, [node for node in pending if not self._folded(node)]
            if len(pending) == len(before):
                break

    def _folded(self, node: Node) -> bool:
        """Computes a node; returns whether it could. Results that depend only on sizes are None."""
        if node.operation in _SHAPES:
            self._known |= dict.fromkeys(node.outputs)
            return True
        inputs = [key for key in node.inputs if key not in ("", None)]
        if not inputs or not node.outputs or not all(key in self._known for key in inputs):
            return node.operation in _PASSED and self._passed(node, inputs)
        values = [value for key in inputs if (value := self._known[key]) is not None]
        if len(values) < len(inputs):
            self.from_shapes |= node.operation in _ROOTS
            self._known |= dict.fromkeys(node.outputs)
            return True
        if node.operation in _PASSED:
            return self._passed(node, inputs)
        function = _FUNCTIONS.get(node.operation)
        try:
            if not function or np.prod(np.broadcast_shapes(*(value.shape for value in values)), dtype=np.float64) > FOLDED:
                return False
            with np.errstate(all="ignore"):
                self.number(node.place, np.asarray(function(*values)), node.outputs[0])
        except (TypeError, ValueError):
            return False
        return True

    def _passed(self, node: Node, inputs: Sequence[Hashable]) -> bool:
        if not inputs or not node.outputs or inputs[0] not in self._known:
            return False
        self._known[node.outputs[0]] = self._known[inputs[0]]
        return True


def _range(*values: np.ndarray) -> np.ndarray:
    start, stop, step = [0, *map(float, values), 1] if len(values) == 1 else [*map(float, values), 1][:3]
    if not abs(stop - start) <= abs(step) * FOLDED:
        raise ValueError("too long")
    return np.arange(start, stop, step)


_SHAPES = {"shape", "size", "sym_size", "get_dimension_size", "shape_of", "rank"}
_ROOTS = {"sqrt", "rsqrt", "pow", "power"}
_PASSED = {
    "cast", "convert", "identity", "_to_copy", "to", "clone", "lift_fresh_copy", "reshape", "view", "unsqueeze", "squeeze", "expand_dims",
    "expanddims", "broadcast_to", "broadcastto", "broadcast_in_dim", "dynamic_broadcast_in_dim", "expand", "dequantize",
}  # fmt: skip
_ALIASES: dict[Callable[..., Any], str] = {
    np.sqrt: "sqrt", np.float_power: "pow power", np.multiply: "mul multiply",
    np.true_divide: "div divide realdiv truediv", np.add: "add addv2",
    np.subtract: "sub subtract", np.negative: "neg negative negate", np.exp: "exp exponential", np.log: "log", np.cos: "cos cosine",
    np.sin: "sin sine", _range: "range arange", (lambda x: 1 / np.sqrt(x)): "rsqrt", (lambda x: 1 / x): "reciprocal inv",
}  # fmt: skip
_FUNCTIONS = {name: function for function, names in _ALIASES.items() for name in names.split()}
