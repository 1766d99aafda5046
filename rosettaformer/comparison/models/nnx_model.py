"""A side in Flax NNX."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax import weights
from reference_numpy import TransformerConfig, layout

from .. import kinds
from .base import Arrays, Called, Layer, Variable, arguments, exchanged, guarded, tensors
from .flax_model import FlaxModel, Values, eagerly, is_tensor, own_variables, settings

__all__ = ["NnxModel"]


class NnxModel(FlaxModel):
    """An `nnx.Module`; its variables are set anew in every call, on a copy."""

    def __init__(self, module: nnx.Module, call: str = "__call__") -> None:
        super().__init__()
        self._module, self._name = module, call
        self._built: dict[str, nnx.Module] = {}
        self._templates: dict[str, dict[tuple[str, int], Any]] = {}
        for name, variable in _variables(module):
            self._values[name] = np.asarray(variable.get_value(), np.float32)
            if isinstance(variable, nnx.Param):
                self._trainable.add(name)
        self.convention = "last" if any(layer.kind in kinds.SPATIAL for layer in self.layers()) else ""

    def about(self) -> dict[str, Any]:
        return {"class": type(self._module).__name__, "versions": self._versions(), "arguments": arguments(self._function())}

    def build(self, inputs: Arrays) -> None:
        pass

    def widen(self, inputs: Arrays) -> None:
        pass

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        weights.load(self._module, values, config, component, table)
        self.load({name: np.asarray(variable.get_value()) for name, variable in _variables(self._module)})

    def _function(self) -> Callable[..., Any]:
        return getattr(self._module, self._name)

    def layers(self) -> list[Layer]:
        found = []
        for path, module, kind in _layers(self._module):
            kernel = getattr(module, "kernel_size", ())
            rank = len(kernel) if isinstance(kernel, (tuple, list)) else 1
            found.append(Layer(path, kind, type(module).__name__, kinds.settings("flax", kind, module, rank)))
        return found

    def variables(self) -> list[Variable]:
        found: list[Variable] = []
        every = dict(_variables(self._module))
        owners = sorted(_layers(self._module), key=lambda row: -len(row[0]))
        for path, module, kind in owners:
            prefix = f"{path}." if path else ""
            owned = {name.removeprefix(prefix): every.pop(name) for name in list(every) if name.startswith(prefix)}
            held = {name: (variable.get_value(), isinstance(variable, nnx.Param)) for name, variable in owned.items()}
            found = own_variables(path, kind, module, held) + found
        return found

    def _copy(self, values: Values, dtype: str, training: bool) -> nnx.Module:
        """The module with these values, in evaluation or in training without dropout."""
        module = nnx.clone(self._module)
        for name, variable in _variables(module):
            variable.set_value(values[name])
        for _, part in nnx.iter_modules(module):
            if dtype == "float64":
                for attribute in ("dtype", "param_dtype"):
                    if getattr(part, attribute, None) == jnp.float32:
                        setattr(part, attribute, jnp.float64)
            if kinds.kind_of("flax", part) == "dropout" and training:
                part.rate = 0.0  # type: ignore[attr-defined]
            if kinds.kind_of("flax", part) == "attention" and training:
                part.dropout_rate = 0.0  # type: ignore[attr-defined]
        if training:
            module.train()
        else:
            module.eval()
        return module

    def _apply(self, values: Values, given: Mapping[str, Any], dtype: str, training: bool, twice: bool = False) -> tuple[Any, Any, Any]:
        module = self._copy(values, dtype, training)
        output = self._call(getattr(module, self._name), given, training)
        after = {name: variable.get_value() for name, variable in _variables(module)}
        return output, after, self._call(getattr(module, self._name), given, training) if twice else None

    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        calls: list[Called] = []
        templates = self._templates[dtype] = {}
        with settings(dtype), eagerly():
            given = self._tensors(inputs, dtype)
            module = self._built[dtype] = self._copy(self._tensors(self._values, dtype), dtype, False)
            with _watched(module, calls, templates):
                output = self._call(getattr(module, self._name), given, False)
        if self._name != "__call__":
            calls.append(_called("", 0, [np.array(value) for value in given.values()], output))
        return calls

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        modules = {path: module for path, module, _ in _layers(self._built[dtype])}

        def forced(path: str, index: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
            args, kwargs = self._templates[dtype][path, index]
            given = exchanged([list(args), kwargs], arrays, is_tensor, lambda array, tensor: jnp.asarray(array).astype(tensor.dtype))
            return [np.array(tensor) for tensor in tensors(modules[path](*given[0], **given[1]), is_tensor)]

        with settings(dtype), eagerly():
            return [guarded(lambda item=item: forced(*item)) for item in wanted]  # type: ignore[misc]


def _variables(module: nnx.Module) -> Iterator[tuple[str, nnx.Variable]]:
    """The floating variables by dotted name."""
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable) and not isinstance(node, nnx.RngState):
            value = node.get_value()
            if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating):
                yield ".".join(map(str, path)), node


def _layers(module: nnx.Module) -> Iterator[tuple[str, Any, str]]:
    """The layers from the outermost, each with its kind; attention is one, whatever it is made of; lists are none."""
    closed: list[str] = []
    rows = [(".".join(map(str, path)), part) for path, part in nnx.iter_modules(module)]
    for path, part in sorted(rows, key=lambda row: len(row[0].split(".")) if row[0] else 0):
        if any(path.startswith(f"{prefix}.") for prefix in closed):
            continue
        kind = kinds.kind_of("flax", part)
        if kind == "attention":
            closed.append(path)
        if callable(part) or not path:
            yield path, part, kind


def _called(path: str, index: int, given: list[np.ndarray], output: Any) -> Called:
    outputs = [np.array(tensor) for tensor in tensors(output, is_tensor)]
    return Called(path, index, given, outputs, [None] * len(given), [None] * len(outputs))


@contextlib.contextmanager
def _watched(root: nnx.Module, calls: list[Called], templates: Any) -> Iterator[None]:
    """Records the calls, through the `__call__` of the layers' classes."""
    paths = {id(module): path for path, module, _ in _layers(root)}
    open_: list[int] = []
    counts: dict[str, int] = {}

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in paths or id(module) in open_:  # a call of the base class within its own is not another one
                return call(module, *args, **kwargs)
            path = paths[id(module)]
            index = counts[path] = counts.get(path, -1) + 1
            templates[path, index] = (args, kwargs)
            given = [np.array(tensor) for tensor in tensors([args, kwargs], is_tensor)]
            open_.append(id(module))
            output = call(module, *args, **kwargs)
            open_.pop()
            calls.append(_called(path, index, given, output))
            return output

        return __call__

    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys(type(module) for _, module, _ in _layers(root)):
            if hasattr(kind, "__call__"):  # noqa: B004
                stack.enter_context(mock.patch.object(kind, "__call__", watched(kind.__call__)))
        yield
