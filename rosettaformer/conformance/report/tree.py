"""Prints the tree of a port's components on a terminal, with the error beside each."""

import math

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..compare import Comparison
from ..diagnosis.divergence import Backward, Divergence, Row


def render_tree(console: Console, divergence: Divergence) -> None:
    """Prints the tree, the components of which the port shows nothing, and the sentence."""
    first, free = Column("component", no_wrap=True), Column("free run", justify="right")
    table = _table(divergence, "largest", first, free, Column("on the reference's inputs", justify="right"), "")
    parents: list[str] = []
    for row in divergence.rows:
        parents = [*parents[: row.depth], row.path]
        table.add_row(_name(row, parents), _show(row.free), _show(row.forced), _note(row))
    if divergence.rows:
        console.print(table)
    if divergence.untraced:
        console.print(f"[yellow]no module was seen for[/] {', '.join(divergence.untraced)}", highlight=False, soft_wrap=True)
    if divergence.problem:
        console.print(f"[red]{escape(divergence.problem)}[/]", highlight=False, soft_wrap=True)
    colour = "green" if divergence.rows and divergence.first is None else "red"
    console.print(f"[{colour}]{escape(divergence.sentence)}[/]", highlight=False, soft_wrap=True)


def render_backward(console: Console, backward: Backward) -> None:
    """Prints the components in backward order, each with its worst gradient, and the sentence."""
    first, error = Column("component, in backward order", no_wrap=True), Column("error", justify="right")
    table = _table(backward, "gradients, largest", first, "worst gradient", error, "")
    for row in backward.rows:
        name = f"[bold red]{escape(row.name)}[/]" if row.first else escape(row.name)
        table.add_row(name, row.worst, _show(row.gradients.get(row.worst)), escape(row.message))
    if backward.rows:
        console.print(table)
    colour = "green" if backward.first is None and any(row.gradients for row in backward.rows) else "red"
    console.print(f"[{colour}]{escape(backward.sentence)}[/]", highlight=False, soft_wrap=True)


def _table(found: Divergence | Backward, which: str, *columns: Column | str) -> Table:
    title = escape(f"{found.port} {found.case} {found.dtype}: {which} error in units of what is allowed")
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _name(row: Row, parents: list[str]) -> str:
    """Returns the part of the path that is not in its parent's path, indented by its depth."""
    around = parents[row.depth - 1] if row.depth else ""
    name = escape("  " * row.depth + row.name.removeprefix(f"{around}." if around else ""))
    return f"[bold red]{name}[/]" if row.first else name


def _show(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    number = f"{comparison.excess:.2g}" if math.isfinite(comparison.excess) else "wrong"
    return f"[red]{number}[/]" if comparison.excess > 1 else f"[green]{number}[/]"


def _note(row: Row) -> str:
    notes = ["[bold red]the first divergence[/]"] if row.first else []
    if row.inputs_agree is False:
        notes.append("its inputs differ")
    if row.message and (row.forced is None or not math.isfinite(row.forced.excess)):
        notes.append(escape(row.message))
    return "; ".join(notes)
