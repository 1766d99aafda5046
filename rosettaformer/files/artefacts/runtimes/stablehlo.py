"""Serialised exports of JAX (`jax.export`), run by JAX.

A program may hold no custom call but those that JAX writes for shapes and shardings, and the kernels of devices on which it does not run
here: JAX runs whatever is registered for the CPU under the name of another. Among these are LAPACK's, which trust the sizes that a program
gives them; and XLA takes apart the TPU's linear algebra on every device, where one operand too few ends the process.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ....common.memory import physical_memory
from ..signature import Artefact, Entry, Tensor

# Custom calls that stand for no kernel: XLA and JAX resolve them when they compile.
TARGETS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "shape_assertion",
    "stablehlo.dynamic_reduce_window",
    "stablehlo.dynamic_rng_bit_generator",
    "stablehlo.dynamic_top_k",
)
# Kernels of JAX on other devices, as a program of several platforms has them in the branches of those; none is registered for the CPU.
ELSEWHERE = re.compile(
    r"(cu|hip)(solver|sparse)_\w+_ffi|(cu|hip)_(threefry2x32_ffi|lu_pivots_to_permutation)|mosaic_gpu_v2|tpu_custom_call|AllocateBuffer"
)
DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")


LIMIT = 120.0  # seconds that the parsers may take


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Returns the program of a file. Raises ValueError if the file is damaged, needs more than JAX's own operations, or is of a later JAX.

    It is examined in a process of its own: on some damaged files the parser of its operations crashes or never ends.
    """
    command = [sys.executable, "-m", __name__, str(path)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": LIMIT}
    try:
        said = subprocess.run(command, env=variables, check=False, **options)
        why = "" if said.returncode == 0 else said.stdout.strip() or f"its parser crashed (exit status {said.returncode})"
    except subprocess.TimeoutExpired:
        why = f"its parser did not end within {LIMIT:.0f} s"
    if why:
        raise ValueError(f"{path} must be a StableHLO export that JAX {version('jax')} opens; {why}")
    return _Program(jax.export.deserialize(bytearray(path.read_bytes())))


def _examine(path: Path) -> str:
    """Returns why the file cannot be opened, in a sentence; empty if it can."""
    try:
        program = jax.export.deserialize(bytearray(path.read_bytes()))
        with mlir.make_ir_context() as context:
            for operation in _operations(stablehlo.deserialize_portable_artifact(context, program.mlir_module_serialized).operation):
                _check(operation)
        if program.nr_devices != 1:
            raise ValueError(f"it is a program of one device; got {program.nr_devices}")
        if program.ordered_effects or program.unordered_effects:
            raise ValueError("it has no effects but its results; got some")
        if "cpu" not in program.platforms:
            raise ValueError(f"it runs on cpu; got {', '.join(program.platforms)}")
    except Exception as error:  # whatever the parsers of a damaged file raise: struct.error, KeyError, MLIRError, ...
        return " ".join(str(error).split()) or type(error).__name__
    return ""


class _Program(Artefact):
    versions = MappingProxyType({name: version(name) for name in ("jax", "jaxlib")})

    def __init__(self, program: jax.export.Exported) -> None:
        self._program = program
        self._call = jax.jit(program.call)
        self._inputs, self._outputs = _inputs(program), _outputs(program)
        inputs, outputs = (
            tuple(Tensor(name, str(aval.dtype), tuple(map(_size, aval.shape))) for name, aval in zip(names, avals, strict=True))
            for names, avals in ((self._inputs, program.in_avals), (self._outputs, program.out_avals))
        )
        self.entries = {"forward": Entry("forward", inputs, outputs)}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        del entry  # there is one
        wide = any(aval.dtype.itemsize == 8 for aval in (*self._program.in_avals, *self._program.out_avals))
        with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.enable_x64(wide):
            args, kwargs = jax.tree.unflatten(self._program.in_tree, [inputs[name] for name in self._inputs])
            found = jax.tree.leaves(self._call(*args, **kwargs))
            return dict(zip(self._outputs, map(np.asarray, found), strict=True))


def _operations(operation: Any) -> Iterator[Any]:
    """Yields an operation and all within it."""
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)


def _check(operation: Any) -> None:
    """Raises ValueError on an operation that JAX does not write by itself, and on results that no memory holds."""
    if operation.name.partition(".")[0] not in DIALECTS:
        raise ValueError(f"it has StableHLO's operations alone; got {operation.name}")
    if operation.name == "stablehlo.custom_call":
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target not in TARGETS and not ELSEWHERE.fullmatch(target):
            raise ValueError(f"its custom calls are {', '.join(TARGETS)}, and JAX's kernels of other devices; got {target}")
    for result in operation.results:
        known = isinstance(result.type, ir.RankedTensorType) and result.type.has_static_shape
        if known and math.prod(result.type.shape) > physical_memory():
            raise ValueError(f"every tensor fits into memory; got {result.type}")


def _inputs(program: jax.export.Exported) -> list[str]:
    """Returns the names of the inputs: their keywords and keys, joined by dots; the place of an argument that has none."""
    paths = _paths(program.in_tree)  # of a pair: positional arguments, and those by name
    short = [_joined(path[1:] if path[0].idx else path[2:] or path[1:]) for path in paths]
    return short if len(set(short)) == len(short) else [_joined(path[1:]) for path in paths]


def _outputs(program: jax.export.Exported) -> list[str]:
    """Returns the names of the results: their keys; those that have none are output, or output.0 and so on."""
    names = [_joined(path) for path in _paths(program.out_tree)]
    return ["output" + (name and f".{name}") if not name or name[0].isdigit() else name for name in names]


def _paths(tree: Any) -> list[Any]:
    return [path for path, _ in jax.tree.leaves_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))]


def _joined(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _size(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size).replace(" ", "")


if __name__ == "__main__":
    reason = _examine(Path(sys.argv[1]))
    print(reason)
    sys.exit(bool(reason))
