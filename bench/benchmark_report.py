"""Renders tables and their environment for a terminal, as Markdown and as JSON."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rosettaformer.common.atomic import write_text
from rosettaformer.comparison.timing.rows import BOUNDS, LOSS_BOUNDS

from .answers import CHECKED, SCORE_BOUND
from .timed_rows import Result
from .workloads import Series, Task


@dataclass(frozen=True)
class Report:
    """All measurements of one command."""

    command: str
    rounds: int
    stamp: Mapping[str, str]
    tables: Sequence[tuple[Task, Sequence[Result]]]
    series: Sequence[tuple[Series, Sequence[tuple[int, Sequence[Result]]]]] = ()

    @property
    def results(self) -> list[Result]:
        points = [results for _, values in self.series for _, results in values]
        return [result for results in [*(results for _, results in self.tables), *points] for result in results]


def render(console: Console, report: Report) -> None:
    """Renders the tables for a terminal."""
    for title, columns, lines, note, remarks in _sections(report):
        table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
        for column in columns:
            table.add_column(column, justify="left" if column == "row" else "right", overflow="fold")
        for cells, good in lines:
            table.add_row(*cells, style=None if good else "red")
        console.print(table)
        _print_lines(console, remarks)
    _print_lines(console, (f"{name}: {text}" for name, text in report.stamp.items()))


def markdown(report: Report) -> list[str]:
    """Renders one section per table, with the command that produces it and the environment."""
    result = []
    for title, columns, lines, note, remarks in _sections(report):
        text = [f"## {title}", "", f"Median of {report.rounds} rounds, by `{report.command}`:", ""]
        text += [*table_lines(columns, [cells for cells, _ in lines]), "", note, ""]
        text += [f"- {line}" for line in (*remarks, *(f"{name}: {value}" for name, value in report.stamp.items()))]
        result.append("\n".join(text) + "\n")
    return result


def merged(page: str, sections: Iterable[str]) -> str:
    """Replaces the page's sections of the same workloads, or appends new ones."""
    head, *parts = re.split(r"^(?=## )", page or "# Performance\n", flags=re.MULTILINE)
    found = {key(part): part.strip() + "\n" for part in (*parts, *sections)}
    return "\n".join([head.strip() + "\n", *found.values()])


def to_dict(report: Report) -> dict[str, Any]:
    """Returns all numbers as JSON values."""
    return {
        "command": report.command,
        "rounds": report.rounds,
        "environment": dict(report.stamp),
        "bounds": {"output": BOUNDS, "loss": LOSS_BOUNDS, "score": SCORE_BOUND},
        "tasks": [{**dataclasses.asdict(task), "title": task.title, "rows": _rows(results)} for task, results in report.tables],
        "scaling": [
            {"name": series.name, "axis": series.axis, "points": [{"value": value, "rows": _rows(results)} for value, results in points]}
            for series, points in report.series
        ],
    }


def _rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(result) for result in results]


Section = tuple[str, list[str], list[tuple[list[str], bool]], str, list[str]]
# column -> a result's cell, or ""; a column without cells is omitted
COLUMNS: dict[str, Callable[[Result], str]] = {
    "median ms": lambda result: _number(result.median_ms, ".2f") if result.status == "timed" else result.status,
    "quartiles": lambda result: " - ".join(f"{value:.2f}" for value in result.quartiles_ms or ()),
    "min ms": lambda result: _number(result.min_ms, ".2f"),
    "ratio": lambda result: _number(result.ratio, ".2f"),
    "to the best": lambda result: _number(result.ratio_to_best, ".2f"),
    "of products": lambda result: _number(result.share, ".0%"),
    "MiB": lambda result: _number(result.memory_mib, ".0f"),
    "compile s": lambda result: _number(result.compile_s, ".1f"),
}


def _sections(report: Report) -> Iterable[Section]:
    for task, results in report.tables:
        cells = {name: [cell(result) for result in results] for name, cell in COLUMNS.items()}
        if task.decodes:
            cells["ms a token"] = [_number(result.median_ms and result.median_ms / task.new_tokens, ".3f") for result in results]
        columns = [name for name, column in cells.items() if any(column)]
        lines = [
            ([label(result), *(cells[name][index] for name in columns)], result.status == "timed") for index, result in enumerate(results)
        ]
        yield task.title, ["row", *columns], lines, _note(task, results), _remarks(results)
    for series, points in report.series:
        each = [(value, result) for value, results in points for result in results]
        names = dict.fromkeys(label(result) for _, result in each)
        for unit in ("ms", "MiB"):
            by_token = unit == "ms" and series.axis == "new tokens"
            found = {}
            for value, result in each:
                time = result.median_ms and result.median_ms / (value if by_token else 1)
                found[label(result), value] = _number(time if unit == "ms" else result.memory_mib, ".3g")
            lines = [([name, *(found.get((name, value), "") for value, _ in points)], True) for name in names]
            columns = ["row", *(str(value) for value, _ in points)]
            title = f"Scaling of the {series.name}, {unit}" + " a token" * by_token
            failures = [(value, result) for value, result in each if result.message]
            remarks = [f"{label(result)} at {value}: {result.status}, {result.message}" for value, result in failures]
            yield title, columns, lines, f"Columns: {series.axis}. {series.tasks[0].title.partition(': ')[2]}, growing.", remarks


def _note(task: Task, results: Sequence[Result]) -> str:
    """Explains a table's numbers."""
    ratio = "Ratio: median time divided by that of the framework's best peer in the same precision; to the best: by the best of all peers. "
    other = "* another architecture of the same size: timed, not compared; only used if a framework has no other peer. "
    products = "Matrix products include those at padding. " * (task.ceiling and task.padding > 0)
    other *= any(not result.comparable for result in results)
    alone = ", one framework after the other" * task.apart
    return f"{ratio * task.peers}{other}{products}Rounds are interleaved{alone}. {_checked(task)}"


def _checked(task: Task) -> str:
    bounds = LOSS_BOUNDS if task.kind == "training" else BOUNDS
    others = ", ".join(f"{precision} {bound:.0e}" for precision, bound in bounds.items() if precision != "float32")
    within = f"within {bounds['float32']:.0e} of the largest ({others})"
    return {
        "training": f"Every row's losses in {CHECKED} steps without dropout matched the reference's {within}.",
        "greedy": "Each token of a compared row is the reference's likeliest after the same tokens, with logits " + within + ".",
        "beam": f"The log p of a compared row's best hypothesis is the reference's within {SCORE_BOUND:.0e}. Rows with their own rule for "
        "ending hypotheses are compared with the reference's beams up to the last token.",
    }.get(task.kind, f"Every row's {'output' if task.kind == 'encoder' else 'logits'} at real tokens matched the reference's {within}.")


def label(result: Result) -> str:
    """Returns the row's name, with its precision unless float32, and a star if not compared."""
    name = result.name or result.framework
    return name + ("" if result.comparable else " *") + ("" if result.precision == "float32" else f", {result.precision}")


def _remarks(results: Iterable[Result]) -> list[str]:
    texts = [f"{label(result)}: {result.status}, {result.message}" for result in results if result.message]
    return texts + [f"{label(result)}: {result.agreement}" for result in results if result.agreement and result.status == "timed"]


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; all cells but each row's first are numbers."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---", *["---:"] * (len(columns) - 1)], *rows)]


def key(section: str) -> str:
    """Returns a section's title without sizes."""
    return re.split(r"[:\n]", section.removeprefix("## "))[0]


def parsed(section: str) -> dict[str, Any]:
    """Parses a section of `markdown` into plain data."""
    title, how, table, note, *rest = section.strip().split("\n\n")
    columns, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    return {
        "name": key(section),
        "title": title.removeprefix("## "),
        "measured": how.removesuffix(":"),
        "columns": columns,
        "rows": rows,
        "note": note,
        "environment": [line.removeprefix("- ") for line in "\n".join(rest).splitlines()],
    }


def write(folder: Path, sections: Iterable[str]) -> None:
    """Writes each section atomically to its own file in the folder. Other files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in map(parsed, sections):
        name = "-".join(re.findall(r"\w+", found["name"].lower()))
        write_text(folder / f"{name}.json", _lines(found))


def _lines(found: dict[str, Any]) -> str:
    """Returns JSON with one line per field, row and line of the environment."""
    fields = []
    for name, value in found.items():
        text = json.dumps(value, ensure_ascii=False)
        if name in ("rows", "environment"):
            text = "[" + ",".join(f"\n  {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n ]"
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"
