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

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
