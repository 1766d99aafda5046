"""Runs torch.export programs eagerly on the CPU."""

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
    """Opens the programs of an archive.

    Raises ValueError, before any is loaded, if it is damaged or holds more than tensors and graphs.
    """
    members = torch_archive.listing(path)
    graphs = torch_program.examine(path, members)
    if not graphs or any(name.startswith(torch_archive.COMPILED) for name in members):
        raise ValueError(f"{path} must hold a torch.export program and no compiled code; got {', '.join([*members][:3])}")
    try:
        with quiet():
            for graph in graphs.values():
                _prepare(graph)
            programs = load_pt2(str(path)).exported_programs
            return _Programs({"forward" if len(programs) == 1 else name: program for name, program in programs.items()})
    except Exception as error:  # torch raises many types
        raise ValueError(f"{path} cannot be opened: torch {torch.__version__} cannot load the program, {told(error)}") from None


class _Programs(Artefact):
    def __init__(self, programs: Mapping[str, ExportedProgram]) -> None:
        self.versions = {"torch": version("torch")}
        self._programs = programs
        self._modules = {name: program.module() for name, program in programs.items()}
        # the state of each program; its signature shows the state only once it is functional
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
    """Returns an input that is not a tensor: a constant of the program, or a size."""
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
    """Yields the buffers that a program changes, which only a functional signature shows."""
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
    """Names every leaf by its keys, joined by dots; an outermost index follows `output_`."""
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([*range(spec.num_leaves)], spec))
    keys = [[str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path] for path, _ in leaves]
    return [".".join(path) if path and not path[0].isdigit() else f"output_{'.'.join(path) or 0}" for path in keys]


class _Container:
    """Replaces a container whose class is not loaded, such as a ModelOutput of transformers."""

    def __init__(self, children: Sequence[Any], context: Any) -> None:
        self.children, self.context = [*children], context


def _prepare(graph: Mapping[str, Any]) -> None:
    """Registers torch's quantization operators, and stand-ins for unknown container classes.

    With the stand-ins, none of these classes must be imported.
    """
    if "torch.ops.quantized_decomposed." in str(graph):
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    for one in graph["graph_module"]["module_call_graph"]:
        for side in ("in_spec", "out_spec") if one["signature"] else ():
            for_spec(one["signature"][side])


def for_spec(text: str) -> None:
    """Registers the stand-ins of a spec."""
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
    """Returns the last line of torch's message, which has the cause."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300] if lines else ''}".removesuffix(": ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences torch's warnings about files that it can open."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
