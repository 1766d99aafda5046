"""The matrix on a terminal."""

import math

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .summary import Cell, Summary

__all__ = ["render"]

SHOWN_FAILURES = 20
SHORT = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def render(console: Console, summary: Summary) -> None:
    """Prints the matrix, what failed, and the totals."""
    if summary.rows:
        console.print(_table(summary))
    for result in summary.failed[:SHOWN_FAILURES]:
        where = " ".join(filter(None, (result.port, result.case, result.dtype, result.mode, result.device)))
        console.print(f"[red]{result.status}[/] {escape(where)}: {escape(result.message)}", highlight=False, soft_wrap=True)
    if len(summary.failed) > SHOWN_FAILURES:
        console.print(f"... and {len(summary.failed) - SHOWN_FAILURES} more; --json has them all")
    for (port, status, reason), count in summary.not_compared.items():
        why = f"by {reason}" if status == "unsupported" else reason
        console.print(f"[yellow]{port}: {status}[/] {escape(why)} ({count})", highlight=False, soft_wrap=True)
    verdict = "[green]all conform[/]" if summary.conforms else "[red]nothing was compared[/]" if not summary.compared else "[red]differs[/]"
    skipped = sum(summary.not_compared.values())
    console.print(f"{summary.compared} compared, {len(summary.failed)} failed, {skipped} not compared: {verdict}", highlight=False)


def _table(summary: Summary) -> Table:
    title = "noise: plain NumPy's largest error in the dtype; the ports' in units of it"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("component", no_wrap=True)
    table.add_column("dtype")
    table.add_column("noise", justify="right")
    several = len({(mode, device) for _, mode, device in summary.columns}) > len({port for port, _, _ in summary.columns})
    for port, mode, device in summary.columns:
        table.add_column(f"{port}\n{mode} {device}" if several or device != "cpu" else f"{port}\n{mode}", justify="right")
    previous = ""
    for row in summary.rows:
        component, dtype = row
        cells = [_show(summary.cell(row, column)) for column in summary.columns]
        table.add_row(component if component != previous else "", SHORT[dtype], f"{summary.noise(row):.1e}", *cells)
        previous = component
    return table


def _show(cell: Cell) -> str:
    if cell.failed:
        ratio = f" {cell.ratio:.2g}" if math.isfinite(cell.ratio) else ""
        return f"[red]FAIL {cell.failed}/{cell.failed + cell.passed}{ratio}[/]"
    if cell.other:
        return f"[yellow]{escape(cell.other)}[/]"
    return f"[green]pass[/] {cell.ratio:.2f}" if cell.passed else ""
