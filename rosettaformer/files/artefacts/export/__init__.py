"""Exports a checkpoint as a file that its format's runtime runs without us.

Each framework's module (`torch`, `tf`, `jax`) has

    write(model, config, kind, path, dtype) -> Exported

model: the port's Transformer with the parameters in `dtype` (a name such as float32), in evaluation; config: its TransformerConfig; kind: a
name of `KINDS`. path: where the file or folder of `forward` is to be written, under its final name, in an empty folder of its own; other
files lie beside it, one for each function where the format holds one program (`beside(path, "step")`: model.step.onnx). The caller renames
everything in that folder to its place, and writes the manifest. `functions.of_config(config, dtype, ids)` says what each function
takes and gives. A model that the format cannot hold: ValueError in one sentence that ends with `see docs/artefacts.md#ANCHOR`, best raised
before anything is written.
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
    """What a framework wrote.

    entries: each function's description, as the file has it. files: the name of the file that holds it. signatures: its name in
    that file; the function's own by default. ids: what becomes of an id out of range: refused, nan, clamped, or what else is true, in
    a word; by input (tokens, segments, positions) where they differ. versions: of the packages that wrote it, by name.
    """

    entries: Mapping[str, Entry]
    files: Mapping[str, str]
    ids: str | Mapping[str, str]
    versions: Mapping[str, str]
    signatures: Mapping[str, str] = {}


# format -> the port that writes it, and the packages that this needs beyond the port's own
WRITERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnx": ("torch", ("onnx", "onnxscript")),
    "pt2": ("torch", ()),
    "aoti": ("torch", ()),
    "savedmodel": ("tf", ()),
    "litert": ("tf", ("ai_edge_litert",)),
    "stablehlo": ("jax", ()),
}


def beside(path: Path, function: str) -> Path:
    """Returns where a function lies that needs a file of its own: forward's at the path, others' beside it."""
    return path if function == "forward" else path.with_name(f"{path.stem}.{function}{path.suffix}")


def export(checkpoint: Path, kind: str, out: Path, dtype: str = "float32", force: bool = False, **reading: Any) -> Manifest:
    """Writes the model of a checkpoint, a canonical file or a Hugging Face folder, and its manifest, as a whole or not at all.

    out: the file or folder of `forward`; others lie beside it. force: they are replaced if they exist. reading: options of
    `checkpoints.load`. Raises ValueError on what cannot be read or held, and MissingBackend.
    """
    backend, packages = WRITERS[kind]
    require(f"the export of {KINDS[kind].title}", {KINDS[kind].extra: packages, **needs_of(backend)})
    check_place(kind, out, force)
    module = backends.imported(backend, f"{__name__}.{backend}")
    read = checkpoints.load(checkpoint, checkpoints.own_format(checkpoint), **reading)
    parameters = {name: array.astype(numpy_dtype(dtype), copy=False) for name, array in read.parameters.items()}
    with contextlib.ExitStack() as stack:
        if backend == "jax":  # which has float64 only where it is asked for
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
        raise ValueError(f"{KINDS[kind].title} must have a name that ends with {suffix}; got {out.name}")
    taken = [path for path in (out, manifest.beside(out), *(beside(out, name) for name in ("encode", "step"))) if path.exists()]
    if taken and not force:
        raise ValueError(f"{taken[0]} exists; replace it with --force")
    atomic.require(out, folder=not suffix)


def _publish(folder: Path, out: Path, names: Sequence[str], force: bool) -> None:
    """Renames the files to their places, the manifest last. If one cannot be renamed, what is new is removed again."""
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
