"""A side in Flax NNX."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax import weights
from impl_jax.framework import device_context
from reference_numpy import TransformerConfig, layout

from ...common.modules import nnx as face
from .. import kinds
from .base import Arrays, Layer, LayerCall
from .flax_model import CPU, FlaxModel, Values
from .layer_calls import Record, described, layers


class NnxModel(FlaxModel):
    """An `nnx.Module`; every call sets the variables of a copy."""

    def __init__(self, module: nnx.Module, call: str = "__call__") -> None:
        super().__init__(module, call)
        self._records: dict[str, Record] = {}
        for name, variable in _variables(module):
            self._values[name] = np.asarray(variable.get_value(), np.float32)
            if isinstance(variable, nnx.Param):
                self._trainable.add(name)
        self.convention = "last" if any(layer.kind in kinds.SPATIAL for layer in self.layers()) else ""

    def adopt(self, values: Arrays, config: TransformerConfig, component: str, table: layout.Table) -> None:
        weights.load(self._module, values, config, component, table)
        self.load({name: np.asarray(variable.get_value()) for name, variable in _variables(self._module)})

    def layers(self) -> list[Layer]:
        return described("flax", self._rows())

    def _rows(self) -> Iterable[tuple[str, Any, str]]:
        return layers("flax", face.paths(self._module), self.whole_attention)

    def _copy(self, values: Values, dtype: str, training: bool) -> nnx.Module:
        """Returns a copy with these values, in evaluation mode or in training mode without dropout."""
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
        (module.train if training else module.eval)()
        return module

    def _apply(self, values: Values, given: Mapping[str, Any], dtype: str, training: bool, twice: bool = False) -> tuple[Any, Any, Any]:
        module = self._copy(values, dtype, training)
        output = self._call(getattr(module, self._name), given, training)
        after = {name: variable.get_value() for name, variable in _variables(module)}
        return output, after, self._call(getattr(module, self._name), given, training) if twice else None

    def run(self, inputs: Arrays, dtype: str) -> list[LayerCall]:
        record = self._records[dtype] = Record(face)
        with device_context(CPU, dtype), face.eager():
            given = self._tensors(inputs, dtype)
            module = self._copy(self._tensors(self._values, dtype), dtype, False)
            rows = [(path, part) for path, part, _ in layers("flax", face.paths(module), self.whole_attention)]
            with face.calls(rows, record.enter, record.leave):
                output = self._call(getattr(module, self._name), given, False)
        record.whole(given, output)
        return record.calls

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], inputs: Arrays, dtype: str) -> list[Any]:
        with device_context(CPU, dtype), face.eager():
            return [self._records[dtype].forced(*item) for item in wanted]


def _variables(module: nnx.Module) -> Iterator[tuple[str, nnx.Variable]]:
    """Yields the floating-point variables by dotted name."""
    for name, node in face.variables(module):
        value: Any = None if isinstance(node, nnx.RngState) else node.get_value()
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating):
            yield name, node
