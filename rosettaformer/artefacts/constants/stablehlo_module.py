"""The constants of a StableHLO export, by the bindings of MLIR that come with jaxlib."""

from pathlib import Path
from typing import Any

import numpy as np
from jax import export
from jax._src.interpreters.mlir import make_ir_context
from jaxlib import _jax
from jaxlib.mlir import ir

from .reading import LIMIT, Constants


def read(path: Path, found: Constants) -> None:
    """Notes the constants of a file. A custom call in it hides none: it stands for an operation of XLA, or for one of another device."""
    module_bytes = export.deserialize(bytearray(path.read_bytes())).mlir_module_serialized
    with make_ir_context():
        module = _jax.mlir.deserialize_portable_artifact(module_bytes)
        for function in module.body.operations:
            if function.operation.name == "func.func":
                _inputs(function, found)
            _operation(function.operation, found)


def _inputs(function: Any, found: Constants) -> None:
    if ir.StringAttr(function.attributes["sym_name"]).value != "main":
        return
    for number, argument in enumerate(function.arguments):
        tensor = ir.RankedTensorType(argument.type)
        sides = [None if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis) for axis in range(tensor.rank)]
        if str(tensor.element_type).startswith(("i", "ui")):
            found.input(sides)
        elif all(side is not None for side in sides):
            found.weight(f"argument {number}", str(tensor.element_type), [side or 0 for side in sides], None)
            found.sides |= {side for side in sides if side is not None}


def _operation(operation: Any, found: Constants) -> None:
    operation = operation.operation
    name = operation.name.partition(".")[2]
    place, words = name, []
    for given in operation.attributes:
        attribute = given.attr if hasattr(given, "attr") else operation.attributes[given]
        label = given.name if hasattr(given, "name") else given
        if isinstance(attribute, ir.DenseElementsAttr) and name == "constant":
            _constant(attribute, operation, found)
        elif isinstance(attribute, ir.IntegerAttr | ir.FloatAttr):
            found.number(place, attribute.value)
        elif isinstance(attribute, ir.DenseI64ArrayAttr):
            found.number(place, [*attribute])
        elif label in ("call_target_name", "name") and isinstance(attribute, ir.StringAttr):
            words.append(attribute.value)
    found.node(name, place, [hash(value) for value in operation.operands], [hash(value) for value in operation.results], words)
    for region in operation.regions:
        for block in region:
            for inner in block:
                _operation(inner, found)


def _constant(attribute: Any, operation: Any, found: Constants) -> None:
    tensor = ir.RankedTensorType(attribute.type)
    dtype = str(tensor.element_type)
    if attribute.is_splat:
        splat = attribute.get_splat_value()
        if hasattr(splat, "value"):
            found.number("constant", splat.value, hash(operation.results[0]))
        return
    shape = list(tensor.shape)
    try:
        value = np.array(attribute) if np.prod(shape, dtype=np.float64) <= LIMIT else None
    except (TypeError, ValueError):  # a dtype that the bindings do not give
        value = None
    name = f"constant {len(found.weights)}"
    found.weight(name, dtype, shape, None if value is None else lambda: value, hash(operation.results[0]))
