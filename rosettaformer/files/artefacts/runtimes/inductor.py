"""Runs AOTInductor packages: compiled code, which runs with the rights of whoever opens it."""

import os
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.pt2_archive import PT2ArchiveReader
from torch.export.pt2_archive._package import load_pt2
from torch.utils import _pytree as pytree

from impl_torch.weights import from_numpy, to_numpy

from ..examining import torch_archive, torch_program
from ..signature import Artefact, Entry, Tensor
from .torch_export import for_spec, paths, quiet, told

# checks in a package's source: input, dtype; input, axis; input, axis, fixed size
_TYPE = re.compile(r"input_handles\[(\d+)\]: unmatched dtype.{0,200}?\(at::k(\w+)\)", re.DOTALL)
_AXIS = re.compile(r"input_handles\[(\d+)\]: (?:unmatched (?:dim|stride)|dim) value(?: is too \w+)? at (\d+), ")
_SIZE = re.compile(r'input_handles\[(\d+)\]: unmatched dim value at (\d+), "\s*<< "expected: (\d+), ')
_DTYPES = {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Half": "float16", "Float": "float32"}
_DTYPES |= {"Double": "float64", "Bool": "bool", "BFloat16": "bfloat16"}


def open_file(path: Path, allow_code: bool) -> Artefact:
    """Opens the models of a package; its exported program is examined, not run.

    Raises ValueError if its code is not allowed to run, or if the package is damaged.
    """
    members = torch_archive.listing(path)
    if not allow_code:
        raise ValueError(
            f"{path} is an AOTInductor package: its compiled code would run with your rights. If you trust it, pass --allow-code"
        )
    torch_program.examine(path, members)
    try:
        with quiet():
            return _Package(path, members)
    except Exception as error:  # torch raises many types
        raise ValueError(f"{path} cannot be opened: torch {torch.__version__} cannot load the package here, {told(error)}") from None


class _Package(Artefact):
    def __init__(self, path: Path, members: Mapping[str, int]) -> None:
        self.versions = {"torch": version("torch")}
        found = _load(path)
        if not found:
            raise ValueError("it holds no model")
        self._models = {"forward" if len(found) == 1 else name: model for name, model in found.items()}
        self._specs: dict[str, Any] = {}
        self.entries = {}
        for name, own in zip(self._models, found, strict=True):
            texts = self._models[name].loader.get_call_spec()
            for text in texts:
                for_spec(text)
            self._specs[name] = taken, given = tuple(map(pytree.treespec_loads, texts))
            inputs = _inputs(taken, _source(path, members, own))
            self.entries[name] = Entry(name, inputs, tuple(Tensor(out, "", ()) for out in paths(given)))

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a model. Raises ValueError on wrong sizes, which compiled code does not check."""
        for tensor in self.entries[entry].inputs:
            got = inputs[tensor.name].shape
            rank = len(tensor.shape) if tensor.dtype else len(got)
            if len(got) != rank or any(isinstance(size, int) and size != own for size, own in zip(tensor.shape, got, strict=False)):
                raise ValueError(f"the package takes {tensor}; got {list(got)}")
        taken, given = self._specs[entry]
        args, kwargs = pytree.tree_unflatten([from_numpy(inputs[tensor.name]) for tensor in self.entries[entry].inputs], taken)
        with torch.inference_mode():
            outputs = pytree.tree_leaves(self._models[entry](*args, **kwargs))
        return {name: to_numpy(output) for name, output in zip(paths(given), outputs, strict=True) if isinstance(output, torch.Tensor)}


def _load(path: Path) -> dict[str, Any]:
    """Loads the models.

    torch unpacks a package into a temporary folder, which a killed process would leave behind. The
    folder is removed as soon as the library is mapped.
    """
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="rosettaformer-aoti-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        try:
            return load_pt2(str(path)).aoti_runners
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


def _source(path: Path, members: Mapping[str, int], model: str) -> str:
    """Returns the source of a model's wrapper, which the package stores next to its library."""
    reader, start = PT2ArchiveReader(str(path)), f"{torch_archive.COMPILED}{model}/"
    return "".join(reader.read_string(name) for name in members if name.startswith(start) and name.endswith("wrapper.cpp"))


def _inputs(spec: pytree.TreeSpec, source: str) -> tuple[Tensor, ...]:
    """Returns the inputs (by keyword, or arg0, ...) with the dtypes and sizes in the source."""
    args, kwargs = spec.children()
    names = [f"arg{name.removeprefix('output_')}" for name in paths(args)] + paths(kwargs)
    dtypes = {int(i): _DTYPES.get(name, "") for i, name in _TYPE.findall(source)}
    ranks: dict[int, int] = {}
    for i, axis in _AXIS.findall(source):
        ranks[int(i)] = max(ranks.get(int(i), 0), int(axis) + 1)
    fixed = {(int(i), int(axis)): int(size) for i, axis, size in _SIZE.findall(source)}
    return tuple(
        Tensor(name.replace(".", "_"), dtypes.get(i, ""), tuple(fixed.get((i, axis), "") for axis in range(ranks.get(i, 0))))
        for i, name in enumerate(names)
    )
