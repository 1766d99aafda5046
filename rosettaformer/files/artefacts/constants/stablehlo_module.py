"""Reads the constants of StableHLO exports with jaxlib's MLIR bindings."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from jax import export
from jax._src.interpreters.mlir import make_ir_context
from jaxlib import _jax
from jaxlib.mlir import ir

from .reading import DRAWS, LIMIT, NORMS, Constants

_DRAWING = {"rng", "rng_bit_generator", "custom_call stablehlo.dynamic_rng_bit_generator"}
# JAX functions that draw random numbers
_SAMPLERS = re.compile(r"_(bernoulli|uniform|normal\w*|truncated_normal|randint|gumbel|categorical|exponential|shuffle)(_\d+)?")
_THREEFRY = 0x1BD11BDA  # constant in the key schedule of JAX's own generator, which is written out


def read(path: Path, found: Constants) -> None:
    """Records a file's constants. Custom calls hide none: they are XLA's or another device's."""
    module_bytes = export.deserialize(bytearray(path.read_bytes())).mlir_module_serialized
    with make_ir_context():
        module = _jax.mlir.deserialize_portable_artifact(module_bytes)
        for function in module.body.operations:
            if function.operation.name == "func.func":
                _inputs(function, found)
            _operation(function.operation, found)
        found.entries["forward"] = found.results.get("main", ())


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
    place, words, bodies = name, [], list[Hashable]()
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
        elif isinstance(attribute, ir.FlatSymbolRefAttr):
            bodies.append(attribute.value)
    for number, region in enumerate(operation.regions):
        key = ir.StringAttr(operation.attributes["sym_name"]).value if name == "func" else (hash(operation), number)
        bodies.append(key)
        for block in region:
            for inner in block:
                _operation(inner, found)
                found.results[key] = [hash(value) for value in inner.operation.operands]  # ends with the region's results
    operands, results = ([hash(value) for value in values] for values in (operation.operands, operation.results))
    drawing = bool({name, *(f"{name} {word}" for word in words)} & _DRAWING) or any(_is_threefry(found.value(key)) for key in results)
    if name == "call" and any(_SAMPLERS.fullmatch(str(body)) for body in bodies):
        drawing, place = True, next(iter(re.findall(r'"([^"]*)"', str(operation.location))), place)
    random = NORMS if name == "batch_norm_training" else DRAWS * drawing
    found.node(name, place, operands, results, words, bodies=bodies, random=random)


def _is_threefry(value: np.ndarray | None) -> bool:
    return value is not None and value.dtype.kind in "iu" and value.size == 1 and int(value.ravel()[0]) == _THREEFRY


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
    except (TypeError, ValueError):  # a dtype that the bindings do not support
        value = None
    name = f"constant {len(found.weights)}"
    found.weight(name, dtype, shape, None if value is None else lambda: value, hash(operation.results[0]))
