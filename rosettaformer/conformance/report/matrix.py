"""The matrix on a terminal."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..case import SUITE_VERSION
from ..runner import Result
from .summary import Cell, Summary

__all__ = ["render"]

SHOWN = 20
SHORT = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def render(console: Console, summary: Summary) -> None:
    """Prints the matrix, what failed, what is accepted although it fails, what was not compared, and the totals."""
    if summary.rows:
        console.print(_table(summary))
    _list(console, summary.failed, "red")
    _list(console, summary.accepted, "yellow")
    for (port, status, reason), count in summary.not_compared.items():
        why = f"by {reason}" if status == "unsupported" else reason
        console.print(f"[yellow]{escape(port)}: {status}[/] {escape(why)} ({count})", highlight=False, soft_wrap=True)
    colour = "green" if summary.conforms else "red"
    suite = f"suite version {SUITE_VERSION}"
    if summary.min_version < SUITE_VERSION:
        suite += f", must conform to {summary.min_version}"
    console.print(f"{summary.totals}: [{colour}]{summary.verdict}[/] ({suite})", highlight=False, soft_wrap=True)


def _list(console: Console, results: Sequence[Result], colour: str) -> None:
    for result in results[:SHOWN]:
        where = " ".join(filter(None, (result.port, result.case, result.dtype, result.mode, result.device)))
        console.print(f"[{colour}]{result.status}[/] {escape(where)}: {escape(result.message)}", highlight=False, soft_wrap=True)
    if len(results) > SHOWN:
        console.print(f"... and {len(results) - SHOWN} more; --json has them all")


def _table(summary: Summary) -> Table:
    title = "noise: plain NumPy's largest error in the dtype; the ports' in units of it"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("component", no_wrap=True)
    table.add_column("dtype")
    table.add_column("noise", justify="right")
    several = len({(mode, device) for _, mode, device in summary.columns}) > len({port for port, _, _ in summary.columns})
    for port, mode, device in summary.columns:
        name = escape(port)
        table.add_column(f"{name}\n{mode} {device}" if several or device != "cpu" else f"{name}\n{mode}", justify="right")
    previous = ""
    for row in summary.rows:
        component, dtype = row
        cells = [_show(summary.cell(row, column)) for column in summary.columns]
        table.add_row(component if component != previous else "", SHORT[dtype], f"{summary.noise(row):.1e}", *cells)
        previous = component
    return table


def _show(cell: Cell) -> str:
    ratio = f" {cell.ratio:.2g}" if math.isfinite(cell.ratio) else ""
    count = cell.failed + cell.passed + cell.accepted
    if cell.failed:
        return f"[red]FAIL {cell.failed}/{count}{ratio}[/]"
    if cell.other:
        return f"[yellow]{escape(cell.other)}[/]"
    if cell.accepted:
        return f"[yellow]accepted {cell.accepted}/{count}[/]{ratio}"
    return f"[green]pass[/] {cell.ratio:.2f}" if cell.passed else ""
