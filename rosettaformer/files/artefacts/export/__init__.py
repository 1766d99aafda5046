"""Exports a checkpoint to a file that its format's runtime can run without this package.

Each framework's module (`torch`, `tf`, `jax`) has

    write(model, config, kind, path, dtype) -> Exported

model: the port's Transformer with parameters in `dtype` (a name such as float32), in evaluation
mode. config: its TransformerConfig. kind: a name in `KINDS`. path: the final name of `forward`'s
file or folder, in an empty folder. If a format holds one program per file, other functions get
their own (`beside(path, "step")`: model.step.onnx). The caller moves all files to their place and
writes the manifest. `functions.of_config` lists each function's inputs and outputs. For a model
that the format cannot hold, `write` raises ValueError, preferably before it writes anything, in one
sentence that ends with `see docs/artefacts.md#ANCHOR`.
"""

import contextlib
import importlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....common import atomic, backends
from ....common.backends import needs_of
from ....common.extras import require
from ... import checkpoints
from ...checkpoints.strict import numpy_dtype
from .. import manifest
from ..kinds import KINDS
from ..manifest import Manifest
from ..signature import Entry


class Exported(NamedTuple):
    """The result of an export.

    entries: the description of each function. files: the name of its file. signatures: its name in
    the file, if different. ids: what happens to ids out of range (refused, nan, clamped, ...), by
    input (tokens, segments, positions) if it differs. versions: the packages that wrote the file.
    """

    entries: Mapping[str, Entry]
    files: Mapping[str, str]
    ids: str | Mapping[str, str]
    versions: Mapping[str, str]
    signatures: Mapping[str, str] = {}


# format -> the port that writes it, and the packages it needs in addition
WRITERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnx": ("torch", ("onnx", "onnxscript")),
    "pt2": ("torch", ()),
    "aoti": ("torch", ()),
    "savedmodel": ("tf", ()),
    "litert": ("tf", ("ai_edge_litert",)),
    "stablehlo": ("jax", ()),
}


def beside(path: Path, function: str) -> Path:
    """Returns the path of a function's file; `forward` has `path` itself."""
    return path if function == "forward" else path.with_name(f"{path.stem}.{function}{path.suffix}")


def export(checkpoint: Path, kind: str, out: Path, dtype: str = "float32", force: bool = False, **reading: Any) -> Manifest:
    """Writes a checkpoint's model and manifest; a failed export leaves nothing behind.

    checkpoint: a canonical file or Hugging Face folder. out: the file or folder of `forward`; other
    functions get files next to it. force: replaces existing files. reading: options of
    `checkpoints.load`. Raises ValueError if the checkpoint cannot be read or the format cannot hold
    the model, and MissingBackend if a package is missing.
    """
    backend, packages = WRITERS[kind]
    require(f"the export of {KINDS[kind].title}", {KINDS[kind].extra: packages, **needs_of(backend)})
    check_place(kind, out, force)
    module = backends.imported(backend, f"{__name__}.{backend}")
    read = checkpoints.load(checkpoint, checkpoints.own_format(checkpoint), **reading)
    parameters = {name: array.astype(numpy_dtype(dtype), copy=False) for name, array in read.parameters.items()}
    with contextlib.ExitStack() as stack:
        if backend == "jax":  # it supports float64 only if enabled
            stack.enter_context(importlib.import_module("impl_jax.framework").device_context("cpu", dtype))
        model = backends.transformer(backend, read.config, parameters)
    folder = out.with_name(f".{secrets.token_hex(8)}.tmp")
    folder.mkdir()
    try:
        exported = module.write(model, read.config, kind, folder / out.name, dtype)
        names = sorted(path.name for path in folder.iterdir())
        said = Manifest(
            format=kind,
            dtype=dtype,
            ids=exported.ids,
            config=read.config.to_dict(),
            versions=exported.versions,
            files={name: manifest.digest(folder / name) for name in names},
            entries={
                name: manifest.described(entry, exported.files[name], exported.signatures.get(name, ""))
                for name, entry in exported.entries.items()
            },
        )
        manifest.write(folder / out.name, said)
        _publish(folder, out, [*names, manifest.beside(out).name], force)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return said


def check_place(kind: str, out: Path, force: bool) -> None:
    """Raises ValueError if nothing can be written there, before a large checkpoint is read."""
    suffix = KINDS[kind].suffix
    if suffix and out.suffix != suffix:
        raise ValueError(f"the name of {KINDS[kind].title} must end with {suffix}; got {out.name}")
    taken = [path for path in (out, manifest.beside(out), *(beside(out, name) for name in ("encode", "step"))) if path.exists()]
    if taken and not force:
        raise ValueError(f"{taken[0]} exists; replace it with --force")
    atomic.require(out, folder=not suffix)


def _publish(folder: Path, out: Path, names: Sequence[str], force: bool) -> None:
    """Moves the files to their places, the manifest last. On failure, new files are removed."""
    done: list[Path] = []
    try:
        for name in names:
            place = out.with_name(name)
            new = not place.exists()
            if not new and not force:
                raise ValueError(f"{place} exists; replace it with --force")
            atomic.publish(folder / name, place)
            done += [place] * new
    except BaseException:
        for place in done:
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        raise
