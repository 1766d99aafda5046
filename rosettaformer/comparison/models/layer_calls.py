"""Records the calls of a model's layers, in any framework of `common.modules`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ...common.modules import nests
from ...common.modules.recording import ModuleCall
from .. import kinds
from .base import Layer, LayerCall, Variable, guarded

Tag = Callable[[Any], Any]


def layers(framework: str, rows: Iterable[tuple[str, Any]], whole_attention: bool = True) -> Iterator[tuple[str, Any, str]]:
    """Yields path, module and kind of every layer.

    whole_attention: whether attention counts as one layer.
    """
    closed: list[str] = []
    for path, part in rows:
        if any(path.startswith(f"{prefix}.") for prefix in closed):
            continue
        kind = kinds.kind_of(framework, part)
        if kind == "attention" and not whole_attention:
            kind = ""
        elif kind == "attention":
            closed.append(path)
        yield path, part, kind


def tensors(face: ModuleType, value: Any) -> list[Any]:
    """Returns the tensors of a nest, in order."""
    return [leaf for leaf in nests.leaves(value) if face.is_tensor(leaf)]


def described(framework: str, rows: Iterable[tuple[str, Any, str]]) -> list[Layer]:
    """Returns the layers for rows of path, module and kind."""
    return [
        Layer(path, kind, type(part).__name__, kinds.hyperparameters(framework, kind, part), kinds.scalars(part))
        for path, part, kind in rows
    ]


def opened(layers: Iterable[Layer], variables: Iterable[Variable]) -> list[Layer]:
    """Turns projections inside attention, as in torch, into layers that are never called."""
    whole, found = {layer.path for layer in layers if layer.kind == "attention"}, dict[str, Layer]()
    for one in variables:
        part, dot, role = one.role.partition(".")
        if one.layer in whole and dot:
            path = f"{one.layer}.{part}"
            one.layer, one.role, one.axes = path, role, "o i" if role == "kernel" else "o"
            found.setdefault(path, Layer(path, "dense", "Linear", {}))
    return [*found.values()]


def own_variables(framework: str, path: str, kind: str, module: Any, owned: Mapping[str, tuple[Any, bool]]) -> list[Variable]:
    """Returns the variables of a Keras or Flax layer.

    owned: value and trainable flag, by relative name.
    """
    kernel = next((value for name, (value, _) in owned.items() if name.endswith("kernel")), None)
    rows = kinds.roles(framework, kind, module, 0 if kernel is None else len(kernel.shape))
    groups = getattr(module, "feature_group_count", None) or getattr(module, "groups", None) or 1
    sizes = {"i": groups} if "convolution" in kind else {}
    found = []
    for name, (value, trainable) in owned.items():
        role, axes = rows.get(name, ("", ""))
        full, required = f"{path}.{name}".lstrip("."), trainable or bool(role)
        found.append(Variable(full, path, role, axes, tuple(value.shape), trainable, sizes, required))
    return found


class Record:
    """Calls of layers in the order in which they end.

    face: the framework's module in `common.modules`. tag: axes of a tensor.
    """

    def __init__(self, face: ModuleType, tag: Tag = lambda tensor: None) -> None:
        self.calls: list[LayerCall] = []
        self._face, self._tag = face, tag
        self._given: dict[tuple[str, int], ModuleCall] = {}
        self._open: dict[tuple[str, int], tuple[list[np.ndarray], list[Any]]] = {}

    def enter(self, call: ModuleCall) -> None:
        """Starts a call; copies its inputs, since a layer may overwrite them."""
        self._given[call.path, call.index] = call
        self._open[call.path, call.index] = self._arrays((call.args, call.kwargs))

    def leave(self, call: ModuleCall, output: Any) -> None:
        """Ends a call."""
        self._add(call.path, call.index, self._open.pop((call.path, call.index)), output)

    def whole(self, given: Any, output: Any) -> None:
        """Appends the call of the whole model, unless it is recorded."""
        if not self.calls or self.calls[-1].path:
            self._add("", 0, self._arrays(given), output)

    def forced(self, path: str, index: int, arrays: list[np.ndarray], function: Callable[..., Any] | None = None) -> Any:
        """Repeats a call of a layer on other inputs; returns an error as a string.

        function: called instead of the layer.
        """

        def answer() -> list[np.ndarray]:
            call = self._given[path, index]
            args, kwargs = nests.exchanged((call.args, call.kwargs), arrays, self._face.is_tensor, self._face.like)
            return self._arrays((function or call.module)(*args, **kwargs))[0]

        return guarded(answer)

    def _add(self, path: str, index: int, given: tuple[list[np.ndarray], list[Any]], output: Any) -> None:
        outputs = self._arrays(output)
        self.calls.append(LayerCall(path, index, given[0], outputs[0], given[1], outputs[1]))

    def _arrays(self, value: Any) -> tuple[list[np.ndarray], list[Any]]:
        """Returns the tensors of a nest as arrays, and their tags."""
        found = tensors(self._face, value)
        return [self._face.to_numpy(tensor) for tensor in found], [self._tag(tensor) for tensor in found]
