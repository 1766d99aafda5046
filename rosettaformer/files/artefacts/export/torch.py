"""Writes ONNX models, torch.export programs and AOTInductor packages: one file per function."""

import contextlib
import io
import re
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._decomp import get_decompositions
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config
from torch.utils._pytree import tree_leaves

from impl_torch.programs import entries
from reference_numpy import TransformerConfig

from ..runtimes.torch_export import quiet
from ..signature import Entry
from . import Exported, beside, functions

# The oldest opset with single-node Gelu and norms: most runtimes read it. Opset 23 adds Attention,
# which returns NaN for an empty row.
OPSET = 20
INSIDE = 1 << 30  # bytes of weights that are kept inside an ONNX file, which protobuf limits to 2 GiB
SIZES = {functions.ROW: 2, functions.SOURCE: 5, functions.TARGET: 3, functions.READ: 4}  # sizes for tracing, all different
_MODULES = {"forward": entries.Forward, "encode": entries.Encode, "step": entries.Step}
_PACKAGES = {"onnx": ("torch", "onnx", "onnxscript"), "pt2": ("torch",), "aoti": ("torch",)}


def write(model: Any, config: TransformerConfig, kind: str, path: Path, dtype: str) -> Exported:
    """Writes the functions of the model, see `rosettaformer.files.artefacts.export`."""
    if kind == "onnx" and dtype == "bfloat16":
        raise ValueError("ONNX Runtime has no bfloat16 on a CPU, so the model could not be checked; see docs/artefacts.md#precision")
    if kind == "onnx" and dtype == "float64" and config.activation == "gelu_erf":
        raise ValueError("ONNX Runtime has no erf for float64, which gelu_erf needs; see docs/artefacts.md#precision")
    found = functions.of_config(config, dtype)
    model.eval().requires_grad_(False)
    for name, entry in found.items():
        # silences the exporters' progress output
        with quiet(), warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            program, place = _program(_MODULES[name](model), entry), beside(path, name)
            if kind == "onnx":
                _write_onnx(program, entry, place)
            elif kind == "pt2":
                torch.export.save(program, place)
            else:
                torch._inductor.aoti_compile_and_package(program, package_path=str(place))
    if kind == "onnx":
        found = {name: _named(entry) for name, entry in found.items()}
    return Exported(
        found,
        {name: beside(path, name).name for name in found},
        "refused",
        {name: version(name) for name in _PACKAGES[kind]},
        dict.fromkeys(found, "forward"),
    )


def _program(module: torch.nn.Module, entry: Entry) -> ExportedProgram:
    """Traces a program for all sizes, including 0 and 1."""
    given = {}
    for tensor in entry.inputs:
        parts = [str(size).split("+") for size in tensor.shape]
        shape = [sum(SIZES.get(part) or int(part) for part in several) for several in parts]
        given[tensor.name] = torch.ones(shape, dtype=getattr(torch, tensor.dtype))
    dynamic = {tensor.name: {axis: Dim.AUTO for axis, size in enumerate(tensor.shape) if isinstance(size, str)} for tensor in entry.inputs}
    # Otherwise tracing assumes that every size is at least 2.
    settings: Any = _config
    with settings.patch(backed_size_oblivious=True):
        program = torch.export.export(module, (), given, dynamic_shapes=dynamic)
    # Drops guards against size 1, by which operators choose views or copies; they choose again.
    program._guards_code = [guard for guard in program._guards_code if not re.search(r"^1 != | != 1$", guard)]
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains local paths
    return program


def _write_onnx(program: ExportedProgram, entry: Entry, path: Path) -> None:
    wide = entry.outputs[0].dtype == "float64"
    if wide:
        program = program.run_decompositions(_in_parts())
    written: Any = torch.onnx.export(
        program,
        dynamo=True,
        optimize=not wide,
        opset_version=OPSET,
        verbose=False,
        input_names=[one.name for one in entry.inputs],
        output_names=[one.name for one in _named(entry).outputs],
        custom_translation_table={torch.ops.aten.sort.stable: _sort},
    )
    for node in written.model.graph:
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)  # contains local paths
    if wide:
        _widen(written.model, program)
        written.optimize()
    _name_sizes(written.model, entry)
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    written.save(path, external_data=weights > INSIDE)


def _sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Sorts in ONNX, which torch's exporter cannot if the order is stable: TopK lists the first of equal numbers first."""
    from onnxscript import opset20 as op  # installed only with the ONNX exporter

    place: Any = [dim]
    return op.TopK(x, op.Gather(op.Shape(x), place), axis=dim, largest=int(descending), sorted=1)


def _in_parts() -> dict[Any, Any]:
    """Decomposes Gelu and LayerNormalization, whose constants ONNX would store in float32."""
    aten = torch.ops.aten
    parts: dict[Any, Any] = get_decompositions([aten.gelu.default])

    def layer_norm(
        x: torch.Tensor, shape: list[int], scale: Any = None, offset: Any = None, epsilon: float = 1e-5, *_: Any
    ) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + epsilon)
        y = y if scale is None else y * scale
        return y if offset is None else y + offset

    return parts | {aten.layer_norm.default: layer_norm}


def _named(entry: Entry) -> Entry:
    """Prefixes `new_` to outputs with the name of an input: names in an ONNX graph are unique."""
    given = {one.name for one in entry.inputs}
    return replace(entry, outputs=tuple(replace(one, name=f"new_{one.name}") if one.name in given else one for one in entry.outputs))


def _name_sizes(model: Any, entry: Entry) -> None:
    """Names the free sizes as in the entry."""
    import onnx_ir  # installed only with the ONNX exporter

    names: dict[str, str] = {}
    for value, tensor in zip(model.graph.inputs, entry.inputs, strict=True):
        names |= {str(own): size for own, size in zip(value.shape, tensor.shape, strict=True) if isinstance(size, str)}
    values = [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([size if isinstance(size, int) else names.get(str(size), size) for size in value.shape])


def _widen(model: Any, program: ExportedProgram) -> None:
    """Restores the float64 constants of a graph, which the exporter rounded to float32."""
    import onnx_ir

    numbers = [one for node in program.graph.nodes for one in tree_leaves((node.args, node.kwargs)) if isinstance(one, float)]
    exact = {float(np.float32(number)): np.float64(number) for number in numbers}
    for name, value in model.graph.initializers.items():
        held = value.const_value
        if held is None or name in program.state_dict or held.dtype != onnx_ir.DataType.DOUBLE or held.size != 1:
            continue
        if (number := exact.get(held.numpy().item())) is not None:
            value.const_value = onnx_ir.tensor(np.full(held.shape.numpy(), number), name=name)
    for node in model.graph:
        if node.op_type != "Constant" or any(used.node.op_type not in ("Cast", "CastLike") for used in node.outputs[0].uses()):
            continue
        (name, held), *_ = node.attributes.items()
        held = held.value.numpy() if name == "value" else np.float32(held.value) if name == "value_float" else np.int64(0)
        if held.dtype == np.float32 and held.size == 1 and (number := exact.get(held.item())) is not None:
            node.attributes.clear()
            node.attributes["value"] = onnx_ir.AttrTensor("value", onnx_ir.tensor(np.full(held.shape, number)))
