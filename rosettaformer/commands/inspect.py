"""`rosettaformer inspect`: what a checkpoint holds, and everything that is wrong with it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from reference_numpy import parameters

from ..checkpoints import Checkpoint, CheckpointError, canonical, families, pickled

__all__ = ["inspect"]

_STATISTICS = ("mean", "std", "min", "max")
LISTED = 1000  # tensors that are shown
LARGEST = 1 << 28  # bytes of a tensor that is read for its statistics


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", metavar="NAME", help="The entry of a training checkpoint that holds the state dict, such as state_dict.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def inspect(context: click.Context, file: Path, key: str | None, as_json: bool) -> None:
    """Show the config, size, ties and tensors of the checkpoint FILE (a file, an index of shards, or their folder).

    Of a file that is not canonical, its raw tensors. Of a damaged one, all problems.
    """
    try:
        description = _describe(file, key)
    except CheckpointError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"file": str(file), "problems": error.problems}))
        context.exit(2)
    if as_json:
        click.echo(json.dumps(description, allow_nan=False))
    else:
        _print(description)


def _describe(file: Path, key: str | None) -> dict[str, Any]:
    source = pickled.read_any(file, key)
    if canonical.is_canonical(source):
        return _canonical(file, canonical.validate(source, file))
    if source.problems:
        raise CheckpointError(file, source.problems)
    kind = families.describe(source.tensors, file)
    return {
        "file": str(file),
        "format": None,
        "recognised": kind and kind.what,
        "metadata": source.metadata,
        "tensors": [_row(*item) for item in source.tensors.items()],
    }


def _canonical(file: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    axes = parameters.axes(checkpoint.config)
    arrays = checkpoint.parameters
    return {
        "file": str(file),
        "format": "canonical",
        "config": checkpoint.config.to_dict(),
        "parameter_count": parameters.count(checkpoint.config),
        "dtype": str(next(iter(arrays.values())).dtype),
        "ties": parameters.ties(checkpoint.config),
        "tensors": [_row(name, array) | {"axes": axes[name]} for name, array in arrays.items()],
    }


def _row(name: str, array: np.ndarray) -> dict[str, Any]:
    """A tensor and its statistics in float64; None where they are not finite numbers, which JSON cannot hold, and of a huge tensor."""
    row: dict[str, Any] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), **dict.fromkeys(_STATISTICS)}
    if array.size and array.nbytes <= LARGEST and not np.iscomplexobj(array):
        values = array.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            found = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        row |= {statistic: float(value) if np.isfinite(value) else None for statistic, value in found.items()}
    return row


def _print(description: Mapping[str, Any]) -> None:
    # a pipe has no width: wide enough that no name is cut
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 160
    if description["format"] is None:
        what = description["recognised"] or "not a canonical checkpoint"
        console.print(f"{description['file']}: {what}; its raw tensors, {len(description['tensors'])}")
        console.print(_pairs("metadata", description["metadata"].items()))
        console.print(_tensors(description["tensors"], ("name", "dtype", "shape")))
        return
    count, dtype = description["parameter_count"], description["dtype"]
    console.print(f"{description['file']}: canonical, {dtype}, {count:,} parameters in {len(description['tensors'])} tensors")
    console.print(_pairs("config", description["config"].items()))
    console.print(_pairs("ties", description["ties"].items()))
    console.print(_tensors(description["tensors"], ("name", "axes", "shape")))


def _pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> Table:
    table = Table(title, "", box=None, title_justify="left")
    for name, value in pairs:
        table.add_row(name, str(value))
    return table


def _tensors(rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> Table:
    table = Table(box=None, caption=f"and {len(rows) - LISTED} more: --json shows all" if len(rows) > LISTED else None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for statistic in _STATISTICS:
        table.add_column(statistic, justify="right", no_wrap=True)
    for row in rows[:LISTED]:
        numbers = ("" if row[statistic] is None else f"{row[statistic]:.4g}" for statistic in _STATISTICS)
        table.add_row(*(" ".join(map(str, row[column])) if column == "shape" else row[column] for column in columns), *numbers)
    return table
