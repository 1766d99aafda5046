"""`rosettaformer export`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..common.outputs import versioned
from ..files.artefacts import export as exporting
from ..files.artefacts import manifest
from ..files.artefacts.kinds import KINDS
from ..files.artefacts.manifest import Manifest
from ..files.checkpoints.strict import DTYPES
from . import words
from .options import Choice, Grouped, examples, ignore_option, one_of


@click.command(cls=Grouped, epilog=examples("export llama/ --to onnx --out llama.onnx", "export llama/ --to savedmodel --out llama_tf"))
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=Choice(list(KINDS)), required=True, metavar="FORMAT", help=f"Format: {', '.join(KINDS)}.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Output file, or folder of a SavedModel.")
@one_of("--dtype", "DTYPE", DTYPES, "float32", "Dtype of weights and outputs.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@ignore_option
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def export(checkpoint: Path, kind: str, out: Path, dtype: str, force: bool, as_json: bool, **reading: Any) -> None:
    """Export a model to ONNX, torch.export, SavedModel, LiteRT or StableHLO.

    CHECKPOINT is a canonical file or a Hugging Face checkpoint. In addition to the whole model, a
    decoder gets a step with a key-value cache, and an encoder-decoder its encoder: as separate
    files, or as signatures of one file. The manifest FILE.json lists the inputs and outputs of
    each. Batch and length are dynamic where the format allows it. If anything is wrong, nothing is
    written.
    """
    said = exporting.export(checkpoint, kind, out, dtype, force, **reading)
    if as_json:
        click.echo(json.dumps(versioned("export", asdict(said))))
        return
    click.echo(words.exported(KINDS[kind].title, dtype, [out.with_name(name) for name in said.files], manifest.beside(out)))
    for line in _lines(said):
        click.echo(line)


def _lines(said: Manifest) -> list[str]:
    """Returns the inputs and outputs of each function, and its behavior on ids out of range."""
    found = []
    for name, one in said.entries.items():
        entry = manifest.entry_of(name, one)
        found.append(f"{name}({', '.join(map(str, entry.inputs))})")
        found.append(f"  -> {', '.join(map(str, entry.outputs))}")
    ids = {"ids": said.ids} if isinstance(said.ids, str) else said.ids
    return [*found, *(words.out_of_range(what, becomes) for what, becomes in ids.items())]
