"""`rosettaformer convert`: a checkpoint in another format, or in another dtype."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from reference_numpy import parameters

from .. import checkpoints
from ..atomic import require
from ..checkpoints import Checkpoint
from ..checkpoints.strict import DTYPES
from ..reading import parse_settings
from .options import Choice

__all__ = ["convert"]


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--from", "from_format", required=True, type=Choice(list(checkpoints.FORMATS)), help="Format of SOURCE.")
@click.option("--to", "to_format", required=True, type=Choice(list(checkpoints.FORMATS)), help="Format of DESTINATION.")
@click.option("--dtype", type=Choice(DTYPES), help="Round every tensor to this dtype.")
@click.option("--force", is_flag=True, help="Replace DESTINATION.")
@click.option("--max-shard-bytes", type=click.IntRange(min=1), help="Write a folder of shards of at most this size, with an index.")
@click.option("--preset", help="Take the choices that no shape shows from this preset.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable.")
@click.option("--key", metavar="NAME", help="The entry of a training checkpoint that holds the state dict, such as state_dict.")
@click.option("--prefix", help="What stands before encoder.layers... in the state dict; found by default.")
@click.option("--source-embedding", metavar="NAME", help="The state dict's source embedding.")
@click.option("--target-embedding", metavar="NAME", help="The state dict's target embedding.")
@click.option("--logits", metavar="NAME", help="The state dict's output layer.")
@click.option("--ignore", multiple=True, metavar="NAME", help="A tensor of the state dict that is no parameter; repeatable.")
@click.option("--fresh-embeddings", type=click.IntRange(min=0), metavar="SEED", help="Initialise the tables and output layer it lacks.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def convert(source: Path, destination: Path, from_format: str, to_format: str, as_json: bool, **given: Any) -> None:
    """Convert the checkpoint SOURCE into DESTINATION, between the canonical file and a foreign format.

    A torch-transformer is a state dict of torch.nn.Transformer with embeddings and an output layer around it, in safetensors or a file of
    torch.save: .pt, .pth, or a training checkpoint (--key).
    Its shapes tell the sizes; tell the rest with --preset and --set, and name what stands around the nn.Transformer.
    Nothing is written when anything is wrong.
    """
    dtype, force = given.pop("dtype"), given.pop("force")
    load_options, save_options = _options(from_format, to_format, given)
    _check_destination(destination, force)
    checkpoint = checkpoints.load(source, from_format, **load_options)
    if dtype:
        checkpoint = _cast(checkpoint, dtype)
    checkpoints.save(destination, checkpoint.config, checkpoint.parameters, to_format, **save_options)
    summary = {
        "file": str(destination),
        "format": to_format,
        "dtype": str(next(iter(checkpoint.parameters.values())).dtype),
        "parameter_count": parameters.count(checkpoint.config),
    }
    text = "wrote {file}: {format}, {dtype}, {parameter_count:,} parameters".format(**summary)
    click.echo(json.dumps(summary) if as_json else text)


def _options(from_format: str, to_format: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of reading and those of writing; raises ValueError on one that would do nothing."""
    if from_format == to_format != "canonical":
        raise ValueError(f"one of the two formats must be canonical; got --from {from_format} --to {to_format}")
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    if "settings" in chosen:
        chosen["settings"] = parse_settings(chosen["settings"])
    reading, writing = checkpoints.options(from_format)[0], checkpoints.options(to_format)[1]
    if idle := [name for name in chosen if name not in (*reading, *writing)]:
        flags = ", ".join("--" + {"settings": "set"}.get(name, name).replace("_", "-") for name in idle)
        raise ValueError(f"{flags} means nothing from {from_format} to {to_format}")
    return {name: chosen[name] for name in chosen if name in reading}, {name: chosen[name] for name in chosen if name in writing}


def _check_destination(destination: Path, force: bool) -> None:
    """Refused before a large source is read."""
    if (destination.exists() or destination.is_symlink()) and not force:
        raise ValueError(f"{destination} exists; replace it with --force")
    if not destination.is_dir():
        require(destination)


def _cast(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    with np.errstate(over="ignore"):
        rounded = {name: array.astype(getattr(ml_dtypes, dtype, dtype)) for name, array in checkpoint.parameters.items()}
    if lost := [name for name, array in rounded.items() if not np.isfinite(array).all()]:
        raise ValueError(f"values are too large for {dtype} in " + ", ".join(lost))
    return Checkpoint(checkpoint.config, rounded)
