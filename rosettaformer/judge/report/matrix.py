"""Prints the results table and the tree of a port's components on a terminal."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..compare import Comparison
from ..diagnosis.divergence import Backward, Divergence, Row
from ..runner import Result
from ..status import Status
from ..summary import Cell, Summary
from . import grouping, words
from .grouping import SHORT
from .words import duration as duration


def render_tree(console: Console, divergence: Divergence) -> None:
    """Prints the tree of components, those that could not be traced, and the conclusion."""
    first, free = Column("component", no_wrap=True), Column("free run", justify="right")
    table = _columns(divergence, "largest error", first, free, Column("on the reference's inputs", justify="right"), "")
    parents: list[str] = []
    for row in divergence.rows:
        parents = [*parents[: row.depth], row.path]
        table.add_row(_indented(row, parents), _excess(row.free), _excess(row.forced), _note(row))
    if divergence.rows:
        console.print(table)
    if divergence.untraced:
        text, components = words.untraced(divergence.untraced)
        console.print(f"[yellow]{text}[/] {components}", highlight=False, soft_wrap=True)
    if divergence.problem:
        console.print(f"[red]{escape(divergence.problem)}[/]", highlight=False, soft_wrap=True)
    colour = "green" if divergence.rows and divergence.first is None else "red"
    console.print(f"[{colour}]{escape(divergence.sentence)}[/]", highlight=False, soft_wrap=True)


def render_backward(console: Console, backward: Backward) -> None:
    """Prints the components in backward order, each with its worst gradient, and the conclusion."""
    first, error = Column("component, in backward order", no_wrap=True), Column("error", justify="right")
    table = _columns(backward, "largest gradient error", first, "worst gradient", error, "")
    for row in backward.rows:
        name = f"[bold red]{escape(row.name)}[/]" if row.first else escape(row.name)
        table.add_row(name, row.worst, _excess(row.gradients.get(row.worst)), escape(row.message))
    if backward.rows:
        console.print(table)
    colour = "green" if backward.first is None and any(row.gradients for row in backward.rows) else "red"
    console.print(f"[{colour}]{escape(backward.sentence)}[/]", highlight=False, soft_wrap=True)


def _columns(found: Divergence | Backward, which: str, *columns: Column | str) -> Table:
    title = escape(words.tree_title(found.port, found.case, found.dtype, which))
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _indented(row: Row, parents: list[str]) -> str:
    """Returns the path relative to its parent's, indented by its depth."""
    around = parents[row.depth - 1] if row.depth else ""
    name = escape("  " * row.depth + row.name.removeprefix(f"{around}." if around else ""))
    return f"[bold red]{name}[/]" if row.first else name


def _excess(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    number = f"{comparison.excess:.2g}" if math.isfinite(comparison.excess) else "wrong"
    return f"[red]{number}[/]" if comparison.excess > 1 else f"[green]{number}[/]"


def _note(row: Row) -> str:
    notes = [f"[bold red]{words.FIRST}[/]"] if row.first else []
    if row.inputs_agree is False:
        notes.append(words.OTHER_INPUTS)
    if row.message and (row.forced is None or not math.isfinite(row.forced.excess)):
        notes.append(escape(row.message))
    return "; ".join(notes)


SHOWN, NAMED = 20, 3  # messages printed at most, and cases named per message
# statuses of cases that have no output and do not fail
WITHOUT = (
    Status.NOT_COVERED, Status.UNSUPPORTED, Status.MISSING, Status.NOT_STARTED, Status.LEFT_OVER, Status.SKIPPED, Status.NOT_RUN,
    Status.TOO_LARGE,
)  # fmt: skip


def render(console: Console, summary: Summary, seconds: float | None = None, options: Sequence[str] | None = ()) -> None:
    """Prints the verdict, the results table, the failures, the expected failures, what was skipped,
    and the next command.

    Leaves out why a port did not start, which is the command's error. seconds: how long the run
    took. options: those of the run that `diagnose` needs, too; None if it cannot diagnose the run.
    """
    colour = "green" if summary.conforms else "red"
    verdict = f"[{colour}]{escape(words.headline(summary))}[/]{words.how_run(seconds)}"
    console.print(verdict, highlight=False, soft_wrap=True)
    if rows := grouping.shown_rows(summary):
        console.print(_table(summary, rows))
        cells = (summary.cell(row, column) for row in rows for column in summary.columns)
        partly = any(cell.left and cell.compared and not cell.failed for cell in cells)
        console.print(words.LEGEND + words.PARTLY * partly, style="dim", highlight=False, soft_wrap=True)
    one_port = len({result.port for result in summary.results}) == 1
    _list(console, summary.failed, "red", one_port)
    _list(console, summary.accepted, "yellow", one_port)
    for result in _lower(summary):
        console.print(f"[green]{escape(result.port)}[/]: {escape(words.lower(result.message))}", highlight=False, soft_wrap=True)
    _list_skipped(console, summary, one_port)
    for port in _to_diagnose(summary) if options is not None else ():
        console.print(words.next_command(port, options or ()), highlight=False, markup=False, soft_wrap=True)


def _list_skipped(console: Console, summary: Summary, one_port: bool) -> None:
    """Prints why comparisons were skipped, those that code in the port would enable first."""
    reasons = [reason for reason in grouping.reasons(summary) if reason.status != Status.NOT_STARTED]
    for reason in sorted(reasons, key=lambda reason: not reason.remedy):
        what, why = words.skipped("" if one_port else reason.port, reason.status, reason.text, reason.count)
        console.print(f"[yellow]{escape(what)}[/]: {escape(why)}", highlight=False, soft_wrap=True)
        if reason.remedy:
            console.print(f"  [cyan]{escape(words.remedy(reason.remedy))}[/]", highlight=False, soft_wrap=True)
    gained = sum(reason.count for reason in reasons if reason.remedy)
    if gained:
        text = words.within_reach(gained, sum(reason.count for reason in reasons) - gained)
        console.print(text, style="dim", highlight=False, soft_wrap=True)


def _lower(summary: Summary) -> list[Result]:
    """Returns each lower-precision port's passing case with the largest error."""
    passed = sorted((result for result in summary.passed if math.isfinite(result.beyond)), key=lambda result: result.beyond)
    return list({result.port: result for result in passed}.values())


def _to_diagnose(summary: Summary) -> list[str]:
    """Returns the failing ports with an output, or that crash or hang, without stored outputs."""
    failing = dict.fromkeys(result.port for result in summary.failed if result.component and result.mode)
    return [
        port for port in failing if any(result.port == port and result.status not in (Status.ERROR, *WITHOUT) for result in summary.results)
    ]


def _list(console: Console, results: Sequence[Result], colour: str, one_port: bool) -> None:
    groups = grouping.alike(results)
    for group in groups[:SHOWN]:
        first = group[0]
        named = [grouping.where(result, port=False) for result in group[:NAMED]] + ["..."] * (len(group) > NAMED)
        text = words.several("" if one_port else first.port, len(group)) if len(group) > 1 else grouping.where(first, not one_port)
        console.print(f"[{colour}]{first.status}[/] {escape(text)}: {escape(first.message)}", highlight=False, soft_wrap=True)
        if len(group) > 1:
            console.print(f"  {escape(', '.join(named))}", highlight=False, soft_wrap=True)
    if len(groups) > SHOWN:
        console.print(words.more_failures(sum(map(len, groups[SHOWN:]))))


def _table(summary: Summary, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("component", no_wrap=True)
    table.add_column("dtype")
    table.add_column("noise", justify="right")
    several = len({(mode, device) for _, mode, device in summary.columns}) > len({port for port, _, _ in summary.columns})
    for port, mode, device in summary.columns:
        where = f"{mode}\n{device}" if "=" in device else f"{mode} {device}" if several or device != "cpu" else mode
        table.add_column(f"{escape(port)}\n{where}", justify="right")
    previous = ""
    for row in rows:
        component, dtype = row
        cells = [_show(summary.cell(row, column)) for column in summary.columns]
        noise = summary.noise(row)
        table.add_row(component if component != previous else "", SHORT[dtype], f"{noise:.1e}" if math.isfinite(noise) else "", *cells)
        previous = component
    return table


def _show(cell: Cell) -> str:
    ratio = f" {cell.ratio:{'.2g' if cell.failed or cell.accepted else '.2f'}}" if math.isfinite(cell.ratio) else ""
    count = cell.compared
    part = f" ({count}/{count + cell.left})" if cell.left else ""
    if cell.failed:
        return f"[red]FAIL {cell.failed}/{count}{ratio}[/]"
    if cell.accepted:
        return f"[yellow]accepted {cell.accepted}/{count}[/]{ratio}{part}"
    if cell.passed:
        return f"[green]pass[/]{ratio}{part}"
    return f"[yellow]{escape(cell.other)}[/]"
