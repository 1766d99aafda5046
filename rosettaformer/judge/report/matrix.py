"""Prints the matrix, and the tree of a port's components with the error beside each, on a terminal."""

import math
import shlex
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..case import SUITE_RELEASE
from ..compare import Comparison
from ..diagnosis.divergence import Backward, Divergence, Row
from ..expectation.tolerance import MAX_FACTOR
from ..ports.command import PREFIX
from ..runner import Result
from ..status import UNANSWERED, UNLOADED, UNSTARTED, Status
from ..summary import Cell, Summary
from . import grouping
from .grouping import SHORT


def render_tree(console: Console, divergence: Divergence) -> None:
    """Prints the tree, the components of which the port shows nothing, and the sentence."""
    first, free = Column("component", no_wrap=True), Column("free run", justify="right")
    table = _columns(divergence, "largest", first, free, Column("on the reference's inputs", justify="right"), "")
    parents: list[str] = []
    for row in divergence.rows:
        parents = [*parents[: row.depth], row.path]
        table.add_row(_indented(row, parents), _excess(row.free), _excess(row.forced), _note(row))
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
    table = _columns(backward, "gradients, largest", first, "worst gradient", error, "")
    for row in backward.rows:
        name = f"[bold red]{escape(row.name)}[/]" if row.first else escape(row.name)
        table.add_row(name, row.worst, _excess(row.gradients.get(row.worst)), escape(row.message))
    if backward.rows:
        console.print(table)
    colour = "green" if backward.first is None and any(row.gradients for row in backward.rows) else "red"
    console.print(f"[{colour}]{escape(backward.sentence)}[/]", highlight=False, soft_wrap=True)


def _columns(found: Divergence | Backward, which: str, *columns: Column | str) -> Table:
    title = escape(f"{found.port} {found.case} {found.dtype}: {which} error in units of what is allowed")
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _indented(row: Row, parents: list[str]) -> str:
    """Returns the part of the path that is not in its parent's path, indented by its depth."""
    around = parents[row.depth - 1] if row.depth else ""
    name = escape("  " * row.depth + row.name.removeprefix(f"{around}." if around else ""))
    return f"[bold red]{name}[/]" if row.first else name


def _excess(comparison: Comparison | None) -> str:
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


SHOWN, NAMED = 20, 3  # at most this many messages are printed, and of a message that many cases share at most this many cases
LEGEND = (
    "noise: plain NumPy's largest error in the dtype, against float64; a port's largest error stands in units of it.\n"
    f"1.00: as accurate as plain NumPy; up to {MAX_FACTOR:g} passes."
)
# statuses of cases that have no answer and do not fail
WITHOUT = (
    Status.NOT_COVERED, Status.UNSUPPORTED, Status.MISSING, Status.NOT_STARTED, Status.LEFT_OVER, Status.SKIPPED, Status.NOT_RUN,
    Status.TOO_LARGE,
)  # fmt: skip
PARTLY = " (n/m): n of m cases were compared, the others are below."


def render(console: Console, summary: Summary, seconds: float | None = None, options: Sequence[str] | None = ()) -> None:
    """Prints the matrix, what failed, what is accepted although it fails, what was not compared, the totals, and what to do next; but not
    why a port did not start, which is the command's error.

    seconds: how long the run took. options: those of the run that `diagnose` needs, too; None if it cannot take the run.
    """
    if rows := grouping.shown_rows(summary):
        console.print(_table(summary, rows))
        cells = (summary.cell(row, column) for row in rows for column in summary.columns)
        partly = any(cell.left and cell.compared and not cell.failed for cell in cells)
        console.print(LEGEND + PARTLY * partly, style="dim", highlight=False, soft_wrap=True)
    _list(console, summary.failed, "red")
    _list(console, summary.accepted, "yellow")
    for result in _lower(summary):
        console.print(f"[green]{escape(result.port)}[/]: at most {escape(result.message)}", highlight=False, soft_wrap=True)
    _list_skipped(console, summary)
    colour = "green" if summary.conforms else "red"
    took = f" in {duration(seconds)}" if seconds is not None else ""
    console.print(f"[{colour}]{escape(summary.headline)}[/] (suite release {SUITE_RELEASE}){took}", highlight=False, soft_wrap=True)
    for port in _to_diagnose(summary) if options is not None else ():
        command = " ".join([_named(port), *map(shlex.quote, options or ())])
        console.print(f"next: rosettaformer diagnose {command}", highlight=False, markup=False, soft_wrap=True)


def _list_skipped(console: Console, summary: Summary) -> None:
    """Prints why results were not compared: first those that a line of code in the port would get, with what to write."""
    reasons = [reason for reason in grouping.reasons(summary) if reason.status != Status.NOT_STARTED]
    for reason in sorted(reasons, key=lambda reason: not reason.remedy):
        why = f"by {reason.text}" if reason.status == Status.UNSUPPORTED else reason.text
        line = f"[yellow]{escape(reason.port)}: {reason.status}[/] {escape(why)} ({reason.count})"
        remedy = f" [cyan]{escape(f'to compare them: {reason.remedy}')}[/]" if reason.remedy else ""
        console.print(line + remedy, highlight=False, soft_wrap=True)
    gained = sum(reason.count for reason in reasons if reason.remedy)
    if gained:
        others = sum(reason.count for reason in reasons) - gained
        text = f"{gained:,} of the skipped comparisons need only code in the port"
        text += f"; the other {others:,} cannot be had from it" * bool(others)
        console.print(text, style="dim", highlight=False, soft_wrap=True)


def _lower(summary: Summary) -> list[Result]:
    """Returns, of each port of a lower precision, the case that passes with the largest error in units of its dtype's tolerance."""
    passed = sorted((result for result in summary.passed if math.isfinite(result.beyond)), key=lambda result: result.beyond)
    return list({result.port: result for result in passed}.values())


def _to_diagnose(summary: Summary) -> list[str]:
    """Returns the ports that fail, but for outputs that were made elsewhere and ports that have not even started."""
    failing = dict.fromkeys(result.port for result in summary.failed if result.component and result.mode)
    silent = {result.port for result in summary.left if result.status == Status.SKIPPED and result.message in (UNLOADED, UNSTARTED)}
    answered = {result.port for result in summary.results if result.status not in (*UNANSWERED, *WITHOUT)}
    return [port for port in failing if port in answered or port not in silent]


def duration(seconds: float) -> str:
    """Returns a time in words: 12 s, 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"


def _named(port: str) -> str:
    """Returns the port as our commands take it."""
    return f"--command {shlex.quote(port.removeprefix(PREFIX))}" if port.startswith(PREFIX) else shlex.quote(port)


def _list(console: Console, results: Sequence[Result], colour: str) -> None:
    groups = grouping.alike(results)
    for group in groups[:SHOWN]:
        first = group[0]
        text = grouping.where(first)
        if len(group) > 1:
            named = [grouping.where(result, port=False) for result in group[:NAMED]] + ["..."] * (len(group) > NAMED)
            text = f"{first.port}: {len(group)} cases ({', '.join(named)})"
        console.print(f"[{colour}]{first.status}[/] {escape(text)}: {escape(first.message)}", highlight=False, soft_wrap=True)
    if len(groups) > SHOWN:
        console.print(f"... and {sum(map(len, groups[SHOWN:]))} more; --json has them all")


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
