"""`rosettaformer convert`: a checkpoint in another format, or in another dtype."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from reference_numpy import parameters

from ..common.atomic import require
from ..common.outputs import versioned
from ..common.reading import parse_settings
from ..files import checkpoints
from ..files.checkpoints import CheckpointError, hugging_face, tensor_report
from ..files.checkpoints.pickled import SUFFIXES, require_torch
from ..files.checkpoints.strict import DTYPES, numpy_dtype
from ..files.checkpoints.tensor_report import Line, counts
from .options import Choice, Grouped, ignore_option, section, wide_console
from .progress import Writing

FORMATS = Choice(list(checkpoints.FORMATS))
NAMED = dict.fromkeys(("prefix", "source_embedding", "target_embedding", "logits"), str)


@click.command(cls=Grouped)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@section(
    "Formats and files",
    click.option("--from", "from_format", type=FORMATS, help="Format of SOURCE; found by default."),
    click.option("--to", "to_format", type=FORMATS, help="Format of DESTINATION; by default as its name ends."),
    click.option("--dtype", type=Choice(DTYPES), help="Round every tensor to this dtype."),
    click.option("--max-shard-bytes", type=click.IntRange(min=1), help="Write a folder of shards of at most this size, with an index."),
    click.option("--force", is_flag=True, help="Replace DESTINATION."),
    click.option("--dry-run", is_flag=True, help="Say what becomes of every tensor, and write nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)
@section(
    "A folder of Hugging Face",
    ignore_option,
    click.option(
        "--tokenizer", type=click.Path(path_type=Path), metavar="DIR", help="Copy a tokenizer's files from here, not from SOURCE."
    ),
)
@section(
    "A state dict",
    click.option("--preset", help="Take the choices that no shape shows from this preset."),
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the config; repeatable."),
    click.option("--key", metavar="NAME", help="The entry of a training checkpoint that holds the state dict, such as state_dict."),
    click.option(
        "--name",
        "names",
        multiple=True,
        metavar="PART=NAME",
        help=f"What it calls a part: {', '.join(NAMED)}; repeatable. prefix stands before encoder.layers...; found by default.",
    ),
    click.option("--fresh-embeddings", type=click.IntRange(min=0), metavar="SEED", help="Initialise the tables and output layer it lacks."),
)
def convert(source: Path, destination: Path, from_format: str | None, to_format: str | None, **given: Any) -> None:
    """Convert the checkpoint SOURCE into DESTINATION, between the canonical file and a foreign format.

    A hugging-face folder holds config.json and the tensors of a BERT, or of a decoder such as GPT-2 or Llama; a destination that is no
    .safetensors is one.
    A torch-transformer is a state dict of torch.nn.Transformer with embeddings and an output layer around it, in safetensors or a file of
    torch.save: .pt, .pth, or a training checkpoint (--key).
    Its shapes tell the sizes; tell the rest with --preset and --set, and name what stands around the nn.Transformer.
    Nothing is written when anything is wrong.
    """
    given |= parse_settings(given.pop("names"), NAMED, "part")
    dtype, force, dry_run, as_json = (given.pop(name) for name in ("dtype", "force", "dry_run", "as_json"))
    if {source.suffix, destination.suffix} & {*SUFFIXES}:
        require_torch()
    from_format = from_format or checkpoints.recognised(source)
    to_format = to_format or _format_of(destination)
    if to_format == "hugging-face" and source.is_dir() and given["tokenizer"] is None:
        given["tokenizer"] = source
    load_options, save_options = _options(from_format, to_format, given)
    _check_destination(destination, force)
    if dry_run:
        _report(source, from_format, load_options, as_json)
        return
    checkpoint = checkpoints.view(source, from_format, **load_options)
    arrays, kind = checkpoint.parameters, dtype or str(next(iter(checkpoint.parameters.values())).dtype)
    with Writing(sum(array.size for array in arrays.values()) * numpy_dtype(kind).itemsize) as writing:
        save_options |= {"foreign": checkpoint.foreign, "dtype": dtype, "written": writing.written}
        checkpoints.save(destination, checkpoint.config, arrays, to_format, **save_options)
    count = parameters.count(checkpoint.config)
    summary = {"file": str(destination), "format": to_format, "dtype": kind, "parameter_count": count}
    text = "wrote {file}: {format}, {dtype}, {parameter_count:,} parameters".format(**summary)
    click.echo(json.dumps(versioned("convert", summary)) if as_json else text)


def _format_of(destination: Path) -> str:
    """Returns the format of something without content yet."""
    if destination.suffix in SUFFIXES:
        return "torch-transformer"
    return "canonical" if destination.suffix == ".safetensors" else "hugging-face"


def _report(source: Path, from_format: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Prints the load report, then raises CheckpointError if there are problems."""
    if from_format != "hugging-face":
        print_report(tensor_report.of_checkpoint(checkpoints.view(source, from_format, **options)), [], as_json)
        return
    found = hugging_face.examine(source, **options)
    print_report(tensor_report.of_examination(found), found.problems, as_json)
    if found.problems:
        raise CheckpointError(source, found.problems)


def _options(from_format: str, to_format: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of reading and of writing; raises ValueError on an option without effect."""
    if from_format == to_format == "torch-transformer":
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
    """Refuses a bad destination before a large source is read."""
    if (destination.exists() or destination.is_symlink()) and not force:
        raise ValueError(f"{destination} exists; replace it with --force")
    if not destination.is_dir():
        require(destination)


WIDTH = 180  # width of the tables outside a terminal


def print_report(lines: Sequence[Line], problems: Sequence[str], as_json: bool) -> None:
    """Prints every line, and the number of tensors in each state."""
    totals = counts(lines)
    if as_json:
        said = {"tensors": [line._asdict() for line in lines], "counts": totals, "problems": list(problems)}
        click.echo(json.dumps(versioned("convert", said)))
        return
    table = Table("state", "tensor", "shape", "dtype", "parameter", box=None)
    for line in lines:
        table.add_row(line.state, line.name, " ".join(map(str, line.shape)), line.dtype, ", ".join(line.canonical))
    console = wide_console(WIDTH, markup=False, highlight=False)
    console.print(table)
    console.print(", ".join(f"{count} {state}" for state, count in totals.items()))
