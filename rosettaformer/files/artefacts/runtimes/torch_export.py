"""Programs of torch.export, run eagerly on the CPU."""

import contextlib
import importlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.export.pt2_archive._package import load_pt2
from torch.utils import _pytree as pytree

from impl_torch.weights import from_numpy, to_numpy

from ..examining import torch_archive, torch_program
from ..signature import Artefact, Entry, Tensor


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Returns the programs of an archive. Raises ValueError, before any is loaded, if it is damaged, or holds more than tensors
    and graphs.
    """
    members = torch_archive.listing(path)
    graphs = torch_program.examine(path, members)
    if not graphs or any(name.startswith(torch_archive.COMPILED) for name in members):
        raise ValueError(f"{path} must hold a program of torch.export and nothing compiled; got {', '.join([*members][:3])}")
    try:
        with quiet():
            for graph in graphs.values():
                _prepare(graph)
            programs = load_pt2(str(path)).exported_programs
            return _Programs({"forward" if len(programs) == 1 else name: program for name, program in programs.items()})
    except Exception as error:  # torch raises whatever its own code meets
        raise ValueError(f"{path} must be a program that torch {torch.__version__} loads; got {told(error)}") from None


class _Programs(Artefact):
    def __init__(self, programs: Mapping[str, ExportedProgram]) -> None:
        self.versions = {"torch": version("torch")}
        self._programs = programs
        self._modules = {name: program.module() for name, program in programs.items()}
        # what a program keeps between calls; its signature tells of it only once it is functional
        self._states = {name: {own: buffer.clone() for own, buffer in module.named_buffers()} for name, module in self._modules.items()}
        self.entries = {name: _entry(name, program) for name, program in programs.items()}

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            for own, buffer in self._modules[entry].named_buffers():
                buffer.copy_(self._states[entry][own])
        return self.resume(entry, inputs)

    def resume(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        program, module = self._programs[entry], self._modules[entry]
        leaves = [
            from_numpy(inputs[spec.arg.name]) if isinstance(spec.arg, TensorArgument) else _constant(spec.arg, inputs)
            for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        ]
        args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
        with torch.inference_mode():
            outputs = pytree.tree_leaves(module(*args, **kwargs))
        names = paths(program.call_spec.out_spec)
        return {name: to_numpy(output) for name, output in zip(names, outputs, strict=True) if isinstance(output, torch.Tensor)}


def _constant(given: Any, inputs: Mapping[str, np.ndarray]) -> Any:
    """Returns an input that is no tensor: a constant of the program, or a size."""
    return given.value if hasattr(given, "value") else inputs[given.name].item()


def _entry(name: str, program: ExportedProgram) -> Entry:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    given = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT and not hasattr(spec.arg, "value")]
    taken = [spec.arg for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    inputs = [_tensor(arg.name, values[arg.name]) for arg in given]
    outputs = [
        _tensor(own, values[arg.name])
        for own, arg in zip(paths(program.call_spec.out_spec), taken, strict=True)
        if isinstance(arg, TensorArgument)
    ]
    return Entry(name, tuple(inputs), tuple(outputs), tuple(_kept(program)))


def _kept(program: ExportedProgram) -> Iterator[Tensor]:
    """Yields the buffers that a program changes, of which its signature tells only once it is functional."""
    buffers = dict(program.named_buffers())
    called = [node.target for node in program.graph.nodes]
    if buffers and any(one._schema.is_mutable for one in called if isinstance(one, torch._ops.OpOverload)):
        for name in program.run_decompositions({}).graph_signature.buffers_to_mutate.values():
            yield _tensor(name, buffers[name])


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, torch.Tensor):
        return Tensor(name, "int64" if isinstance(value, torch.SymInt) else "float64", ())
    return Tensor(
        name, str(value.dtype).removeprefix("torch."), tuple(size if isinstance(size, int) else str(size.node.expr) for size in value.shape)
    )


def paths(spec: pytree.TreeSpec) -> list[str]:
    """Returns a name for every leaf: the keys that lead to it, joined by dots; `output_` before a place in the outermost tuple."""
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([*range(spec.num_leaves)], spec))
    keys = [[str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path] for path, _ in leaves]
    return [".".join(path) if path and not path[0].isdigit() else f"output_{'.'.join(path) or 0}" for path in keys]


class _Container:
    """Stands for a container of a class that is not loaded, such as a ModelOutput of transformers."""

    def __init__(self, children: Sequence[Any], context: Any) -> None:
        self.children, self.context = [*children], context


def _prepare(graph: Mapping[str, Any]) -> None:
    """Registers the operators of torch's own quantisation, and a stand-in for every class of inputs and outputs that torch does not know,
    so that none need be imported.
    """
    if "torch.ops.quantized_decomposed." in str(graph):
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    for one in graph["graph_module"]["module_call_graph"]:
        for side in ("in_spec", "out_spec") if one["signature"] else ():
            for_spec(one["signature"][side])


def for_spec(text: str) -> None:
    """Registers the stand-ins of one spec."""
    pending = [json.loads(text)[1]]
    while pending:
        spec = pending.pop()
        pending += spec["children_spec"]
        if (kind := spec["type"]) and kind not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            pytree.register_pytree_node(
                type(kind.rpartition(".")[2], (_Container,), {}),
                lambda value: (value.children, value.context),
                _made(kind),
                serialized_type_name=kind,
                flatten_with_keys_fn=lambda value: ([*zip(_keys(value), value.children, strict=True)], value.context),
            )


def _made(kind: str) -> Any:
    return lambda children, context: pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[kind](children, context)


def _keys(value: _Container) -> list[Any]:
    names = value.context if isinstance(value.context, list) else []
    names = names[0] if names and isinstance(names[0], list) else names
    fits = len(names) == len(value.children) and all(isinstance(name, str) for name in names)
    return [pytree.MappingKey(name) for name in names] if fits else [pytree.SequenceKey(i) for i in range(len(value.children))]


def told(error: BaseException) -> str:
    """Returns what torch's own message says at its end, where its cause stands, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300] if lines else ''}".removesuffix(": ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch's warnings about a file that it then opens say nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
