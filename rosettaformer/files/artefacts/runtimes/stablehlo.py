"""Runs StableHLO exports of JAX (`jax.export`).

Custom calls are limited to those that JAX writes for shapes and shardings, and to kernels for other
devices. JAX would run anything registered for the CPU under a custom call's name, including
LAPACK's kernels, which trust the sizes in the program. Also, XLA expands the TPU's linear algebra
on every device, and a missing operand there ends the process.
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

# Custom calls without a kernel: XLA and JAX resolve them at compile time.
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
# Kernels for other devices, in branches of multi-platform programs; none is registered for the CPU.
ELSEWHERE = re.compile(
    r"(cu|hip)(solver|sparse)_\w+_ffi|(cu|hip)_(threefry2x32_ffi|lu_pivots_to_permutation)|mosaic_gpu_v2|tpu_custom_call|AllocateBuffer"
)
DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")


LIMIT = 120.0  # seconds for the parsers


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Opens a program. Raises ValueError if it is damaged, too new, or not JAX's own.

    A process of its own examines the file: JAX's parser may crash or hang on damaged files.
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
        raise ValueError(f"{path} is not a StableHLO export that JAX {version('jax')} can open; {why}")
    return _Program(jax.export.deserialize(bytearray(path.read_bytes())))


def _examine(path: Path) -> str:
    """Returns why the file cannot be opened, as a sentence; empty if it can."""
    try:
        program = jax.export.deserialize(bytearray(path.read_bytes()))
        with mlir.make_ir_context() as context:
            for operation in _operations(stablehlo.deserialize_portable_artifact(context, program.mlir_module_serialized).operation):
                _check(operation)
        if program.nr_devices != 1:
            raise ValueError(f"it must be for one device; got {program.nr_devices}")
        if program.ordered_effects or program.unordered_effects:
            raise ValueError("it must have no side effects; got some")
        if "cpu" not in program.platforms:
            raise ValueError(f"it must support the platform cpu; got {', '.join(program.platforms)}")
    except Exception as error:  # parsers of damaged files raise many types: struct.error, KeyError, MLIRError, ...
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
        del entry  # there is only one
        wide = any(aval.dtype.itemsize == 8 for aval in (*self._program.in_avals, *self._program.out_avals))
        with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.enable_x64(wide):
            args, kwargs = jax.tree.unflatten(self._program.in_tree, [inputs[name] for name in self._inputs])
            found = jax.tree.leaves(self._call(*args, **kwargs))
            return dict(zip(self._outputs, map(np.asarray, found), strict=True))


def _operations(operation: Any) -> Iterator[Any]:
    """Yields an operation and all operations inside it."""
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)


def _check(operation: Any) -> None:
    """Raises ValueError on operations that JAX does not write, and on results beyond memory."""
    if operation.name.partition(".")[0] not in DIALECTS:
        raise ValueError(f"it must have only StableHLO's operations; got {operation.name}")
    if operation.name == "stablehlo.custom_call":
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if target not in TARGETS and not ELSEWHERE.fullmatch(target):
            raise ValueError(f"its custom calls must be {', '.join(TARGETS)}, or JAX's kernels for other devices; got {target}")
    for result in operation.results:
        known = isinstance(result.type, ir.RankedTensorType) and result.type.has_static_shape
        if known and math.prod(result.type.shape) > physical_memory():
            raise ValueError(f"every tensor must fit into memory; got {result.type}")


def _inputs(program: jax.export.Exported) -> list[str]:
    """Names the inputs by their keywords and keys, joined by dots, or else by their position."""
    paths = _paths(program.in_tree)  # a pair: positional and keyword arguments
    short = [_joined(path[1:] if path[0].idx else path[2:] or path[1:]) for path in paths]
    return short if len(set(short)) == len(short) else [_joined(path[1:]) for path in paths]


def _outputs(program: jax.export.Exported) -> list[str]:
    """Names the results by their keys; a result without a key is output, or output.0, ..."""
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
