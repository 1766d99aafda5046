"""`rosettaformer export`: a checkpoint's model as a file that runs without us."""

import json
from collections.abc import Mapping
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
from .options import Choice, ignore_option


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=Choice(list(KINDS)), required=True, help="Format of the file.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file, or the folder of a SavedModel.")
@click.option("--dtype", type=Choice(DTYPES), default="float32", show_default=True, help="Of weights, keys, values and outputs.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@ignore_option
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def export(checkpoint: Path, kind: str, out: Path, dtype: str, force: bool, as_json: bool, **reading: Any) -> None:
    """Write the model of CHECKPOINT, a canonical file or a Hugging Face folder, as a file that its format's runtime runs without us.

    A model that decodes has a cached step beside the whole model, and one of both stacks its encoder, too: in files beside FILE, or as
    signatures of one file. FILE.json says what each takes and gives. Rows and lengths are free where the format can.
    Nothing is written when anything is wrong.
    """
    said = exporting.export(checkpoint, kind, out, dtype, force, **reading)
    if as_json:
        click.echo(json.dumps(versioned("export", asdict(said))))
        return
    click.echo(f"wrote {KINDS[kind].title} in {dtype}: {', '.join(str(out.with_name(name)) for name in said.files)}")
    click.echo(f"manifest {manifest.beside(out)}")
    for line in _lines(said):
        click.echo(line)


def _lines(said: Manifest) -> list[str]:
    """Returns what each function takes and gives, and what becomes of ids out of range."""
    found = []
    for name, one in said.entries.items():
        entry = manifest.entry_of(name, one)
        found.append(f"{name}({', '.join(map(str, entry.inputs))})")
        found.append(f"  -> {', '.join(map(str, entry.outputs))}")
    ids = {"ids": said.ids} if isinstance(said.ids, str) else said.ids
    return [*found, *_told(ids)]


def _told(ids: Mapping[str, str]) -> list[str]:
    return [f"{what} out of range: {becomes}" for what, becomes in ids.items()]
