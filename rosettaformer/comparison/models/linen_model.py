"""A side in Flax Linen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util
from flax.core import meta

from impl_jax.framework import device_context
from reference_numpy import TransformerConfig, layout

from ...common.modules import linen as face
from ...common.modules.recording import ModuleCall
from .. import kinds
from .base import Arrays, Layer, LayerCall
from .flax_model import CPU, FlaxModel, Values
from .layer_calls import Record, described

PARAMETERS = "params"


class LinenModel(FlaxModel):
    """An `nn.Module` and its variables; its layers are known after the first call."""

    convention = "last"

    def __init__(self, module: nn.Module, call: str = "__call__") -> None:
        super().__init__(module, call)
        self._places: dict[str, tuple[str, tuple[str, ...]]] = {}  # variable -> its collection and path
        self._others: dict[str, Any] = {}
        self._layers: dict[str, tuple[Layer, Any]] = {}

    def build(self, inputs: Arrays) -> None:
        with device_context(CPU, "float32"):
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

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        self.load(layout.to_native(values, table, config, component))

    def layers(self) -> list[Layer]:
        return [layer for layer, _ in self._layers.values()]

    def _rows(self) -> Iterable[tuple[str, Any, str]]:
        return [(path, module, layer.kind) for path, (layer, module) in self._layers.items()]

    def _apply(self, values: Values, given: Mapping[str, Any], dtype: str, training: bool, twice: bool = False) -> tuple[Any, Any, Any]:
        trees: dict[str, dict[tuple[str, ...], Any]] = {}
        for name, (collection, path) in self._places.items():
            trees.setdefault(collection, {})[path] = values[name]
        variables = self._others | {name: traverse_util.unflatten_dict(tree) for name, tree in trees.items()}
        mutable = [name for name in {place[0] for place in self._places.values()} if name != PARAMETERS] if training else False

        def once(key: int) -> Any:
            def call(**given: Any) -> Any:
                rngs = {"dropout": jax.random.key(key)} if training else None
                return self._module.apply(variables, rngs=rngs, mutable=mutable, method=self._name, **given)

            with nn.intercept_methods(_no_dropout):
                return self._call(call, given, training)

        result = once(0)
        output, changed = result if mutable is not False else (result, {})
        flat = {collection: traverse_util.flatten_dict(dict(tree)) for collection, tree in changed.items()}
        after = {name: flat.get(place[0], {}).get(place[1], values[name]) for name, place in self._places.items()}
        second: Any = once(1) if twice else None
        return output, after, second[0] if twice and mutable is not False else second

    def _recorded(self, inputs: Arrays, dtype: str, leave: Callable[[Record, ModuleCall, Any], None]) -> list[LayerCall]:
        record = Record(face)
        with device_context(CPU, dtype), face.eager(), face.calls(self._path, record.enter, lambda *ended: leave(record, *ended)):
            given, values = self._tensors(inputs, dtype), self._tensors(self._values, dtype)
            output = self._apply(values, given, dtype, False)[0]
        record.whole(given, output)
        return record.calls

    def _path(self, module: nn.Module) -> str | None:
        """Returns the path of a layer and registers it; None inside attention, which is one layer."""
        path = face.path(module)
        if self.whole_attention and any(
            layer.kind == "attention" and path.startswith(f"{known}.") for known, (layer, _) in self._layers.items()
        ):
            return None
        if path not in self._layers:
            kind = kinds.kind_of("flax", module)
            (layer,) = described("flax", [(path, module, kind if self.whole_attention or kind != "attention" else "")])
            self._layers[path] = layer, module
        return path

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        return self._recorded(inputs, dtype, Record.leave)

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        """Calls each layer on the other inputs while the whole model runs."""
        waiting: dict[tuple[str, int], list[int]] = {}
        for number, (path, index, _) in enumerate(wanted):
            waiting.setdefault((path, index), []).append(number)
        answers: list[Any] = ["the layer was not called again"] * len(wanted)

        def leave(record: Record, call: ModuleCall, output: Any) -> None:
            record.leave(call, output)
            for number in waiting.get((call.path, call.index), ()):
                alone, variables = call.module.clone(parent=None, name=None), call.module.variables
                function = lambda *args, **kwargs: alone.apply(variables, *args, **kwargs)  # noqa: B023, E731
                answers[number] = record.forced(call.path, call.index, wanted[number][2], function)

        self._recorded(inputs, dtype, leave)
        return answers


def _no_dropout(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
    if isinstance(context.module, nn.Dropout) and context.method_name == "__call__":
        return args[0] if args else kwargs["inputs"]
    return call(*args, **kwargs)
