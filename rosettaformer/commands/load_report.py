"""Prints a load report as text or JSON."""

import json
from collections.abc import Sequence

import click
from rich.table import Table

from ..checkpoints.report import Line, counts
from .options import wide_console

__all__ = ["print_report"]

WIDTH = 180  # width of the tables outside a terminal


def print_report(lines: Sequence[Line], problems: Sequence[str], as_json: bool) -> None:
    """Prints every line, and the number of tensors in each state."""
    totals = counts(lines)
    if as_json:
        click.echo(json.dumps({"tensors": [line._asdict() for line in lines], "counts": totals, "problems": list(problems)}))
        return
    table = Table("state", "tensor", "shape", "dtype", "parameter", box=None)
    for line in lines:
        table.add_row(line.state, line.name, " ".join(map(str, line.shape)), line.dtype, ", ".join(line.canonical))
    console = wide_console(WIDTH, markup=False, highlight=False)
    console.print(table)
    console.print(", ".join(f"{count} {state}" for state, count in totals.items()))
