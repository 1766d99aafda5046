"""`rosettaformer inspect`."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Column, Table

from reference_numpy import TransformerConfig, parameters

from ..common.outputs import versioned
from ..files.checkpoints import Checkpoint, CheckpointError, canonical, hugging_face, pickled, recognise
from . import words
from .options import Grouped, examples, ignore_option, wide_console

_STATISTICS = ("mean", "std", "min", "max")
FEW = 8  # skipped tensors that are listed by name
LISTED = 1000  # tensors in the table
WIDTH = 160  # width of tables outside a terminal
LARGEST = 1 << 28  # maximum size of a tensor with statistics, in bytes


@click.command(cls=Grouped, epilog=examples("inspect llama/", "inspect model.safetensors --tensors"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", metavar="NAME", help="Entry of a training checkpoint that holds the state dict, such as state_dict.")
@ignore_option
@click.option("--tensors", is_flag=True, help="List every tensor with its axes or dtype, shape and statistics.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the tensors.")
@click.pass_context
def inspect(context: click.Context, file: Path, key: str | None, ignore: tuple[str, ...], tensors: bool, as_json: bool) -> None:
    """Show what a checkpoint contains and what is wrong with it.

    FILE is a checkpoint file, an index of shards, or a folder. Prints its family, heads, dtypes,
    ties, config and metadata. Exits with 2 if it is damaged or its family is not supported.
    """
    try:
        description = _describe(file, key, ignore, as_json or tensors)
    except CheckpointError as error:
        if not as_json:
            raise
        click.echo(json.dumps(versioned("inspect", {"file": str(file), "problems": error.problems})))
        context.exit(2)
    if as_json:
        click.echo(json.dumps(versioned("inspect", description), allow_nan=False))
    else:
        _print(description, tensors)
    if description["problems"]:
        context.exit(2)


def _describe(file: Path, key: str | None, ignore: tuple[str, ...], statistics: bool) -> dict[str, Any]:
    """Describes a checkpoint. statistics: whether to compute statistics of the tensors."""
    source = pickled.read(file, key)
    if canonical.is_canonical(source):
        checkpoint = canonical.validate(source, file)
        return {"file": str(file), "format": "canonical"} | _canonical(checkpoint, statistics)
    if source.problems:
        raise CheckpointError(file, source.problems)
    if hugging_face.family_of(file, source.tensors):
        return _hugging_face(file, ignore, statistics)
    kind = recognise.describe(source.tensors, file)
    if ignore and not (kind and kind.unread):
        raise ValueError(f"--ignore {ignore[0]} needs a Hugging Face checkpoint of a supported family; {file} is not one")
    if kind and kind.lacks_config and (file.is_dir() or os.path.lexists(file.parent / recognise.CONFIG)):
        raise recognise.ForeignError(file, kind)
    return {
        "file": str(file),
        "format": None,
        "recognised": kind and kind.what,
        "problems": [kind.advice] if kind and kind.unread else [],
        "metadata": source.metadata,
        "tensors": [_row(name, array, statistics) for name, array in source.tensors.items()],
    }


def _canonical(checkpoint: Checkpoint, statistics: bool) -> dict[str, Any]:
    axes, arrays = parameters.axes(checkpoint.config), checkpoint.parameters
    return {
        "problems": [],
        "config": checkpoint.config.to_dict(),
        "parameter_count": parameters.count(checkpoint.config),
        "dtype": str(next(iter(arrays.values())).dtype),
        "ties": parameters.ties(checkpoint.config),
        "tensors": [_row(name, array, statistics) | {"axes": axes[name]} for name, array in arrays.items()],
    }


def _hugging_face(file: Path, ignore: tuple[str, ...], statistics: bool) -> dict[str, Any]:
    """Describes a Hugging Face checkpoint; unsupported heads are listed and left out."""
    found = hugging_face.examine(file, ignore=[*ignore, *hugging_face.examine(file, ignore=ignore).alien])
    family, checkpoint = found.family, found.checkpoint()
    left = [name for name, state in found.states.items() if state == "left out"]
    return {
        "file": str(file),
        "format": "hugging-face",
        "family": f"{family.name}, {', '.join(found.foreign['config.json'].get('architectures') or [family.base])}",
        "heads": sorted(family.heads_of(checkpoint.config)),
        "left_out": left,
    } | _canonical(checkpoint, statistics)


def _row(name: str, array: np.ndarray, statistics: bool) -> dict[str, Any]:
    """Returns a tensor and its statistics in float64: None if not finite or if the tensor is huge."""
    row: dict[str, Any] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), **dict.fromkeys(_STATISTICS)}
    if statistics and array.size and array.nbytes <= LARGEST and not np.iscomplexobj(array):
        values = array.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            found = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        row |= {statistic: float(value) if np.isfinite(value) else None for statistic, value in found.items()}
    return row


def _print(description: Mapping[str, Any], listed: bool) -> None:
    console = wide_console(WIDTH, markup=False, highlight=False)
    foreign, tensors = description["format"] is None, description["tensors"]
    dtypes = Counter(row["dtype"] for row in tensors)
    family = (description["recognised"] or "unknown") if foreign else description.get("family") or _family(description["config"])
    summary = {
        "family": family,
        "format": description["format"] or "not canonical",
        "dtypes": ", ".join(f"{dtype} ({count})" for dtype, count in dtypes.items()) or "none",
        "tensors": f"{len(tensors):,}",
        "parameters": f"{sum(math.prod(row['shape']) for row in tensors):,}",
    }
    if "heads" in description:
        summary |= {"heads": ", ".join(description["heads"]) or "none", "not read": _grouped(description["left_out"]) or "none"}
    if not foreign:
        summary["ties"] = ", ".join(f"{name} is {stored}" for name, stored in description["ties"].items()) or "none"
    console.print(_pairs(description["file"], (summary | {"problems": "; ".join(description["problems"]) or "none"}).items()))
    if foreign:
        console.print(_pairs("metadata", description["metadata"].items()))
    for group, names in {} if foreign else TransformerConfig.groups().items():
        console.print(_pairs(f"config: {group}", ((name, description["config"][name]) for name in names)))
    if listed:
        console.print(_tensors(tensors, ("name", "dtype" if foreign else "axes", "shape")))


def _grouped(names: Sequence[str]) -> str:
    """Returns the names; more than a few are summarized by part of the model."""
    if len(names) <= FEW:
        return ", ".join(names)
    parts = Counter(name.removeprefix("model.").partition(".")[0] for name in names)
    return ", ".join(f"{part}.* ({count} tensors)" for part, count in parts.items())


def _family(config: Mapping[str, Any]) -> str:
    layers = {stack: config[f"{stack}_layers"] for stack in ("encoder", "decoder") if config[f"{stack}_layers"]}
    return f"Transformer, {'-'.join(layers)}, {' + '.join(map(str, layers.values()))} layers"


def _pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> Table:
    table = Table(title, Column(overflow="fold"), box=None, title_justify="left")
    for name, value in pairs:
        table.add_row(name, str(value))
    return table


def _tensors(rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> Table:
    table = Table(box=None, caption=words.more_tensors(len(rows) - LISTED) if len(rows) > LISTED else None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for statistic in _STATISTICS:
        table.add_column(statistic, justify="right", no_wrap=True)
    for row in rows[:LISTED]:
        numbers = ("" if row[statistic] is None else f"{row[statistic]:.4g}" for statistic in _STATISTICS)
        table.add_row(*(" ".join(map(str, row[column])) if column == "shape" else row[column] for column in columns), *numbers)
    return table
