"""`rosettaformer convert`."""

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
from . import words
from .options import Choice, Grouped, examples, ignore_option, section, wide_console
from .progress import Writing

FORMATS = Choice(list(checkpoints.FORMATS))
NAMED = dict.fromkeys(("prefix", "source_embedding", "target_embedding", "logits"), str)


@click.command(cls=Grouped, epilog=examples("convert llama/ llama.safetensors", "convert model.pt model.safetensors --dry-run"))
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@section(
    "Formats and files",
    click.option("--from", "from_format", type=FORMATS, metavar="FORMAT", help=f"Format of SOURCE: {', '.join(checkpoints.FORMATS)}."),
    click.option("--to", "to_format", type=FORMATS, metavar="FORMAT", help="Format of DESTINATION. [default: by its suffix]"),
    click.option("--dtype", type=Choice(DTYPES), metavar="DTYPE", help=f"Dtype to round every tensor to: {', '.join(DTYPES)}."),
    click.option("--max-shard-bytes", type=click.IntRange(min=1), metavar="N", help="Maximum size of a shard; writes shards and an index."),
    click.option("--force", is_flag=True, help="Overwrite DESTINATION."),
)
@section(
    "State dicts of torch.nn.Transformer",
    click.option("--preset", metavar="NAME", help="Preset for the config fields that tensor shapes do not determine."),
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Field of the config; repeatable."),
    click.option("--key", metavar="NAME", help="Entry of a training checkpoint that holds the state dict, such as state_dict."),
    click.option(
        "--name",
        "names",
        multiple=True,
        metavar="PART=NAME",
        help=f"Name of a part in the state dict: {', '.join(NAMED)}; repeatable. [default: detected]",
    ),
    click.option(
        "--fresh-embeddings", type=click.IntRange(min=0), metavar="SEED", help="Random embeddings and output layer, if they are missing."
    ),
)
@section(
    "Hugging Face checkpoints",
    ignore_option,
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder to copy tokenizer files from. [default: SOURCE]",
    ),
)
@section(
    "Output",
    click.option("--dry-run", is_flag=True, help="Print what would happen to each tensor and write nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)
def convert(source: Path, destination: Path, from_format: str | None, to_format: str | None, **given: Any) -> None:
    """Convert a checkpoint to another format.

    \b
    SOURCE and DESTINATION are:
      canonical          a .safetensors file of this project
      hugging-face       a folder with config.json, of BERT or of a decoder such as GPT-2 or Llama
      torch-transformer  a state dict of torch.nn.Transformer with embeddings and an output layer:
                         .safetensors, .pt, .pth, or a training checkpoint (--key)

    Sizes are read from the tensor shapes; --preset and --set add the other config fields. If
    anything is wrong, nothing is written.
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
    summary: dict[str, Any] = {"file": str(destination), "format": to_format, "dtype": kind, "parameter_count": count}
    click.echo(json.dumps(versioned("convert", summary)) if as_json else words.converted(**summary))


def _format_of(destination: Path) -> str:
    """Returns the format of a new file or folder, judged by its suffix."""
    if destination.suffix in SUFFIXES:
        return "torch-transformer"
    return "canonical" if destination.suffix == ".safetensors" else "hugging-face"


def _report(source: Path, from_format: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Prints what would happen to each tensor; raises CheckpointError if there are problems."""
    if from_format != "hugging-face":
        print_report(tensor_report.of_checkpoint(checkpoints.view(source, from_format, **options)), [], as_json)
        return
    found = hugging_face.examine(source, **options)
    print_report(tensor_report.of_examination(found), found.problems, as_json)
    if found.problems:
        raise CheckpointError(source, found.problems)


def _options(from_format: str, to_format: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options for reading and for writing.

    Raises ValueError on an option without effect.
    """
    if from_format == to_format == "torch-transformer":
        raise ValueError(f"SOURCE or DESTINATION must be canonical; got --from {from_format} --to {to_format}")
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    if "settings" in chosen:
        chosen["settings"] = parse_settings(chosen["settings"])
    reading, writing = checkpoints.options(from_format)[0], checkpoints.options(to_format)[1]
    if idle := [name for name in chosen if name not in (*reading, *writing)]:
        flags = ", ".join("--" + {"settings": "set"}.get(name, name).replace("_", "-") for name in idle)
        raise ValueError(f"{flags} has no effect when converting {from_format} to {to_format}")
    return {name: chosen[name] for name in chosen if name in reading}, {name: chosen[name] for name in chosen if name in writing}


def _check_destination(destination: Path, force: bool) -> None:
    """Raises ValueError if the destination cannot be written, before a large source is read."""
    if (destination.exists() or destination.is_symlink()) and not force:
        raise ValueError(f"{destination} already exists; --force overwrites it")
    if not destination.is_dir():
        require(destination)


WIDTH = 180  # width of tables outside a terminal


def print_report(lines: Sequence[Line], problems: Sequence[str], as_json: bool) -> None:
    """Prints one line per tensor, and the number of tensors in each state."""
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
