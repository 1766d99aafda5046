"""Prints the report of a comparison on a terminal: its verdict, its sentences and its tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import words
from ..numbers import units
from ..words import CONVENTION, NOTHING, OPTIMIZERS

COLOURS = {
    "equal": "green", "rounding": "yellow", "differs": "red", "not comparable": "dim",
    CONVENTION: "yellow", NOTHING: "red",
}  # fmt: skip
SHOWN = 12  # differing rows in a table
Report = Mapping[str, Any]


def verdict(report: Report) -> str:
    """Returns `equal`, `rounding` or `differs`, the worst of outputs, gradients and steps; or
    `nothing was compared`.

    Layers count only if they have different constants that rounding hides in the outputs.
    """
    steps = [row for step in report.get("steps", {}).values() for row in step["rows"]]
    found = {row["verdict"] for row in (*report["outputs"], *report.get("gradients", ()), *steps)}
    found |= {"differs"} if report["hidden"] else set()
    return next((word for word in ("differs", "rounding", "equal") if word in found), NOTHING)


def sentences(report: Report) -> list[str]:
    """Returns the sentences of a report, the result first."""
    return words.sentences(report, verdict(report))


def render(console: Console, report: Report, quiet: bool) -> None:
    """Prints the verdict and the sentences, and then, unless quiet, the tables."""
    colour = COLOURS[verdict(report)]
    for number, text in enumerate(sentences(report)):
        console.print(f"[{colour}]{escape(text)}[/]" if number == 0 else escape(text), highlight=False, soft_wrap=True)
    if quiet:
        return
    tables = [_layers(report), *(_plain(title, rows) for title, rows in _others(report) if rows)]
    for table in [*tables, *([_timing(report)] if report.get("timing") else [])]:
        console.print()
        console.print(table)


def render_changes(console: Console, found: Report, before: str, after: str, quiet: bool) -> None:
    """Prints the verdict on two reports and then, unless quiet, every row that changed."""
    console.print(words.changes(before, after, found), highlight=False, soft_wrap=True)
    for word, colour in (("worse", "red"), ("better", "green")):
        for row in found[word] if not quiet else ():
            numbers = " -> ".join(f"{row[when]['verdict']} {units(row[when]['units'])}" for when in ("before", "after"))
            console.print(f"[{colour}]{word}[/] {escape(row['name'])}: {numbers}", highlight=False, soft_wrap=True)
    for word in ("appeared", "vanished"):
        for name in found[word] if not quiet else ():
            console.print(f"[yellow]{word}[/] {escape(name)}", highlight=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        text = column in ("left", "right", "shape", "verdict", "kind", "what")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table


def _layers(report: Report) -> Table:
    table = _table(words.heading(report), "left", "right", "shape", "as run", "left's input", "right's input", "verdict")
    for row in report["layers"]:
        forced = [units(one["units"]) if one["verdict"] != "not comparable" else "-" for one in row["forced"]]
        name = row["left"] + (f" #{row['call'] + 1}" if row["call"] else "")
        free = units(row["free"]["units"]) if row["free"]["verdict"] != "not comparable" else "-"
        cells = name, row["right"], " ".join(map(str, row["shape"])), free, *[*forced, "", ""][:2], row["verdict"]
        table.add_row(*map(escape, cells[:-1]), f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]", style=None if row["leaf"] else "dim")
    for number, output in enumerate(report["outputs"]):
        name = "output" if len(report["outputs"]) == 1 else f"output {number + 1}"
        table.add_row(name, name, "", units(output["units"]), "", "", f"[{COLOURS[output['verdict']]}]{output['verdict']}[/]")
    return table


def _others(report: Report) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    named = {"gradients": report.get("gradients", [])}
    named |= {f"variables after one {OPTIMIZERS.get(name, name)} step": step["rows"] for name, step in report.get("steps", {}).items()}
    for title, rows in named.items():
        yield title, [row for row in rows if row["verdict"] in ("differs", CONVENTION)]


def _plain(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(words.different(title, SHOWN, len(rows)), "left", "right", "error", "verdict")
    for row in rows[:SHOWN]:
        table.add_row(escape(row["left"]), escape(row["right"]), units(row["units"]), f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]")
    return table


def _timing(report: Report) -> Table:
    table = _table(words.TIMING, "what", "left ms", "right ms", "left first ms", "right first ms",
                   "left peak MiB", "right peak MiB")  # fmt: skip
    for row in report["timing"]:
        cells = []
        for key, form in (("median_ms", ".3g"), ("first_ms", ".4g"), ("peak_mib", ".3g")):
            cells += [
                "failed" if "failed" in side else format(side[key], form) if side.get(key) is not None else "" for side in row["sides"]
            ]
        table.add_row(f"{row['what']}, {row['mode']}", *cells)
    return table
