"""A side in Flax Linen."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from flax.core import meta

from reference_numpy import TransformerConfig, layout

from .. import kinds
from .base import Arrays, Called, Layer, Variable, arguments, exchanged, guarded, tensors
from .flax_model import FlaxModel, Values, eagerly, is_tensor, own_variables, settings

__all__ = ["LinenModel"]

PARAMETERS = "params"
Forced = Mapping[tuple[str, int], list[np.ndarray]]


class LinenModel(FlaxModel):
    """An `nn.Module` and its variables; layers are known once it was called."""

    convention = "last"

    def __init__(self, module: nn.Module, call: str = "__call__") -> None:
        super().__init__()
        self._module, self._name = module, call
        self._places: dict[str, tuple[str, tuple[str, ...]]] = {}  # of a variable: its collection and path
        self._others: dict[str, Any] = {}
        self._layers: dict[str, tuple[Layer, Any]] = {}

    def about(self) -> dict[str, Any]:
        return {"class": type(self._module).__name__, "versions": self._versions(), "arguments": arguments(self._function())}

    def _function(self) -> Callable[..., Any]:
        return getattr(self._module, self._name)

    def build(self, inputs: Arrays) -> None:
        with settings("float32"):
            given = self._tensors(inputs, "float32")
            keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
            made = meta.unbox(self._call(lambda **given: self._module.init(keys, method=self._name, **given), given, False))
        for collection, tree in made.items():
            for path, value in traverse_util.flatten_dict(tree).items():
                name = ".".join(path)
                if collection == "intermediates":
                    continue
                if not jnp.issubdtype(value.dtype, jnp.floating):
                    self._others[collection] = tree
                    continue
                self._places[name] = (collection, path)
                self._values[name] = np.asarray(value, np.float32)
                if collection == PARAMETERS:
                    self._trainable.add(name)
        self.run(inputs, "float32")

    def widen(self, inputs: Arrays) -> None:
        pass

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        self.load(layout.to_native(values, table, config, component))

    def layers(self) -> list[Layer]:
        return [layer for layer, _ in self._layers.values()]

    def variables(self) -> list[Variable]:
        found: list[Variable] = []
        left = dict(self._values)
        for path in sorted(self._layers, key=lambda path: -len(path)):
            layer, module = self._layers[path]
            prefix = f"{path}." if path else ""
            held = {name.removeprefix(prefix): (left.pop(name), name in self._trainable) for name in list(left) if name.startswith(prefix)}
            found = own_variables(path, layer.kind, module, held) + found
        return found

    def _tree(self, values: Values) -> dict[str, Any]:
        trees: dict[str, dict[tuple[str, ...], Any]] = {}
        for name, value in values.items():
            collection, path = self._places[name]
            trees.setdefault(collection, {})[path] = value
        return {**self._others, **{collection: traverse_util.unflatten_dict(tree) for collection, tree in trees.items()}}

    def _apply(self, values: Values, given: Mapping[str, Any], dtype: str, training: bool, twice: bool = False) -> tuple[Any, Any, Any]:
        mutable = [name for name in {place[0] for place in self._places.values()} if name != PARAMETERS] if training else False

        def once(key: int) -> Any:
            def call(**given: Any) -> Any:
                rngs = {"dropout": jax.random.key(key)} if training else None
                return self._module.apply(self._tree(values), rngs=rngs, mutable=mutable, method=self._name, **given)

            with nn.intercept_methods(_no_dropout):
                return self._call(call, given, training)

        result = once(0)
        output, changed = result if mutable is not False else (result, {})
        flat = {collection: traverse_util.flatten_dict(dict(tree)) for collection, tree in changed.items()}
        after = {name: flat.get(place[0], {}).get(place[1], values[name]) for name, place in self._places.items()}
        second: Any = once(1) if twice else None
        return output, after, second[0] if twice and mutable is not False else second

    def _recorded(self, inputs: Arrays, dtype: str, forced: Forced) -> tuple[list[Called], dict[tuple[str, int], Any]]:
        calls: list[Called] = []
        answers: dict[tuple[str, int], Any] = {}
        with settings(dtype), eagerly(), _watched(calls, self._layers, forced, answers):
            given, values = self._tensors(inputs, dtype), self._tensors(self._values, dtype)
            output = self._apply(values, given, dtype, False)[0]
        if self._name != "__call__":
            arrays = [np.array(value) for value in given.values()]
            calls.append(_called("", 0, arrays, output))
        return calls, answers

    def run(self, inputs: Arrays, dtype: str) -> list[Called]:
        return self._recorded(inputs, dtype, {})[0]

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        answers = self._recorded(inputs, dtype, {(path, index): arrays for path, index, arrays in wanted})[1]
        return [answers.get((path, index), "was not called again") for path, index, _ in wanted]


def _no_dropout(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
    if isinstance(context.module, nn.Dropout) and context.method_name == "__call__":
        return args[0] if args else kwargs["inputs"]
    return call(*args, **kwargs)


def _called(path: str, index: int, given: list[np.ndarray], output: Any) -> Called:
    outputs = [np.array(tensor) for tensor in tensors(output, is_tensor)]
    return Called(path, index, given, outputs, [None] * len(given), [None] * len(outputs))


@contextlib.contextmanager
def _watched(
    calls: list[Called], layers: dict[str, tuple[Layer, Any]], forced: Forced, answers: dict[tuple[str, int], Any]
) -> Iterator[None]:
    """Records the calls; a layer that is to be given other arrays is called with these too, within the same call of the whole."""
    counts: dict[str, int] = {}
    closed: list[str] = []
    quiet: list[bool] = []

    def intercept(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        path = ".".join(context.module.path)
        if context.method_name != "__call__" or quiet or any(path.startswith(f"{prefix}.") for prefix in closed):
            return call(*args, **kwargs)
        kind = kinds.kind_of("flax", context.module)
        if path not in layers:
            size = getattr(context.module, "kernel_size", ())
            rank = len(size) if isinstance(size, (tuple, list)) else 1
            values = kinds.settings("flax", kind, context.module, rank)
            layers[path] = Layer(path, kind, type(context.module).__name__, values), context.module
        if kind == "attention":
            closed.append(path)
        index = counts[path] = counts.get(path, -1) + 1
        given = [np.array(tensor) for tensor in tensors([args, kwargs], is_tensor)]
        output = call(*args, **kwargs)
        calls.append(_called(path, index, given, output))
        if (path, index) in forced:
            quiet.append(True)
            alone = context.module.clone(parent=None, name=None)
            answers[path, index] = guarded(lambda: _forced(alone, context.module.variables, args, kwargs, forced[path, index]))
            quiet.pop()
        if kind == "attention":
            closed.remove(path)
        return output

    with nn.intercept_methods(intercept):
        yield


def _forced(module: nn.Module, variables: Any, args: Any, kwargs: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    given = exchanged([list(args), kwargs], arrays, is_tensor, lambda array, tensor: jnp.asarray(array).astype(tensor.dtype))
    return [np.array(tensor) for tensor in tensors(module.apply(variables, *given[0], **given[1]), is_tensor)]
