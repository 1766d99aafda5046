"""Converts between canonical NumPy parameters and the variables of any layer, bit for bit."""

import inspect
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from reference_numpy import TransformerConfig, layout
from reference_numpy import parameters as canonical
from reference_numpy.layout import Table

from .framework import keras
from .projection import Adapted

__all__ = ["TABLE", "at", "export", "from_numpy", "load", "to_numpy", "values", "variables"]

Module: TypeAlias = keras.layers.Layer | tf.Module
Variable: TypeAlias = keras.Variable | tf.Variable

# Norms of queries and keys have one axis. Keras layers already have a property `output`.
TABLE: Table = (
    *(
        (f"{name}.{kind}", f"{name}.{kind}", f"({heads} k)")
        for name, heads in (("query_norm", "h"), ("key_norm", "g"))
        for kind in ("scale", "offset")
    ),
    *layout.renamed(output="output_projection"),
)


def load(
    module: Module,
    parameters: Mapping[str, np.ndarray],
    config: TransformerConfig,
    component: str = "transformer",
    table: Table = TABLE,
) -> None:
    """Assigns canonical parameters to the module's variables, in place and bit for bit.

    LoRA's addition becomes 0. Raises one ValueError, changing nothing, on missing, unexpected or
    misshapen tensors, wrong dtypes, and if table and module do not match.
    """
    native = variables(module, config, component, table)
    dtypes = {tf.as_dtype(variable.dtype).name for variable in native.values()}
    canonical.match(
        parameters, canonical.shapes(config, component), dtypes.pop() if len(dtypes) == 1 else None
    )
    arrays = layout.to_native(parameters, table, config, component)
    if problems := [
        f"{name} is {_kind(variable)} in the module; got {_kind(arrays[name])}"
        for name, variable in native.items()
        if _kind(variable) != _kind(arrays[name])
    ]:
        raise ValueError("parameters do not fit:\n  " + "\n  ".join(problems))
    for name, variable in native.items():
        variable.assign(from_numpy(arrays[name]))
    for layer in _adapted(module, native).values():
        layer.reset_lora()


def export(
    module: Module, config: TransformerConfig, component: str = "transformer", table: Table = TABLE
) -> dict[str, np.ndarray]:
    """Returns the module's variables by canonical name, including what LoRA adds; inverts `load`.

    Raises ValueError if table and module do not match.
    """
    native = values(module, config, component, table)
    arrays = {name: to_numpy(value) for name, value in native.items()}
    return layout.from_native(arrays, table, config, component)


def values(
    module: Module, config: TransformerConfig, component: str = "transformer", table: Table = TABLE
) -> dict[str, Variable | tf.Tensor]:
    """Returns `variables`, with LoRA-adapted ones replaced by the tensors used in computation."""
    native = variables(module, config, component, table)
    return native | {name: layer.adapted() for name, layer in _adapted(module, native).items()}


def variables(
    module: Module, config: TransformerConfig, component: str = "transformer", table: Table = TABLE
) -> dict[str, Variable]:
    """Returns the module's variables by native name, a path of attributes and list indices.

    Builds layers that need no input shape. Raises ValueError if table and module do not match.
    """
    _build(module)
    found, problems = {}, []
    for name, letters in canonical.axes(config, component).items():
        native, _ = layout.native(name, letters, table)
        found[native] = at(module, native)
        if found[native] is None:
            problems.append(f"{native} of {name} is not a variable of the module")
    adapters = (variable for layer in _adapted(module, found).values() for variable in layer.lora)
    known = {*map(_key, found.values()), *map(_key, adapters)}
    problems += [
        f"variable {getattr(variable, 'path', variable.name)} of shape {tuple(variable.shape)} is "
        "not in the table"
        for variable in module.trainable_variables
        if _key(variable) not in known
    ]
    if problems:
        raise ValueError("the weight table does not fit the module:\n  " + "\n  ".join(problems))
    return found


def to_numpy(tensor: tf.Tensor | Variable) -> np.ndarray:
    """Copies a tensor or variable bit for bit; bfloat16 becomes `ml_dtypes.bfloat16`."""
    return np.array(tf.convert_to_tensor(tensor).numpy())


def from_numpy(array: np.ndarray, device: str = "/CPU:0") -> tf.Tensor:
    """Copies an array to a tensor on the device, bit for bit."""
    with tf.device(device):
        # TensorFlow may share the memory of an array, so it gets a copy.
        return tf.constant(np.array(array))


def _kind(x: Variable | np.ndarray) -> str:
    return f"{tf.as_dtype(x.dtype).name} {tuple(x.shape)}"


def _build(module: Module) -> None:
    if getattr(module, "built", True):
        return
    needed = inspect.signature(module.build).parameters.values()
    if any(parameter.default is parameter.empty for parameter in needed):
        raise ValueError(
            f"{module.name} creates its variables from the shapes of its inputs; call it once "
            "before its parameters are set"
        )
    module.build()


def at(module: Module, path: str) -> Variable | None:
    """Returns the variable with this native name, or None."""
    node = _node(module, path)
    return node if hasattr(node, "assign") else None


def _node(module: Module, path: str) -> Module | Variable | None:
    node = module
    for part in filter(None, path.split(".")):
        try:
            node = node[int(part)] if part.isdigit() else getattr(node, part)
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
    return node


def _adapted(module: Module, names: Iterable[str]) -> dict[str, Adapted]:
    """Returns the LoRA-adapted layers, by the native name of their matrix."""
    layers = {name: _node(module, name.rpartition(".")[0]) for name in names}
    return {
        name: layer
        for name, layer in layers.items()
        if isinstance(layer, Adapted) and layer.lora and name.endswith(layer.matrix)
    }


def _key(variable: Variable) -> int:
    """Returns the identity of the storage: a Keras variable wraps a tf.Variable."""
    return id(variable.value if isinstance(variable, keras.Variable) else variable)
