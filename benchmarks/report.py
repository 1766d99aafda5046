"""The table, in a terminal, as Markdown and as JSON."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .measure import BOUNDS, LOSS_BOUNDS, Result
from .problem import BATCH, CHECKED, LENGTH, VOCABULARY

__all__ = ["environment", "markdown", "merged", "render", "to_json", "write"]

COLUMNS = ("row", "median ms", "min ms", "ratio", "compile s")
PACKAGES = ("numpy", "torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "flax")


def environment(described: Mapping[str, str]) -> dict[str, str]:
    """Where the numbers were taken; described: threads or device by framework."""
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        **{name: text for name, text in described.items() if text},
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions()]),
    }


def render(console: Console, title: str, stamp: Mapping[str, str], results: Sequence[Result], training: bool = False) -> None:
    """The table in a terminal."""
    table = Table(title=title, title_justify="left", caption=_note(training), caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "row" else "right", overflow="fold")
    for result in results:
        table.add_row(*_cells(result), style=None if result.status == "timed" else "red")
    console.print(table)
    _print_lines(console, _remarks(results))
    _print_lines(console, (f"{name}: {text}" for name, text in stamp.items()))


def markdown(title: str, command: str, stamp: Mapping[str, str], results: Sequence[Result], training: bool = False) -> str:
    """The section of the forward pass or of the training step: the table with the command that makes it."""
    lines = [HEADINGS[training], "", f"{title}, by `{command}`:", "", _line(COLUMNS), _line(["---", *["---:"] * 4])]
    lines += [_line(_cells(result)) for result in results]
    lines += ["", _note(training), "", *(f"- {text}" for text in _remarks(results)), *(f"- {name}: {text}" for name, text in stamp.items())]
    return "\n".join(lines) + "\n"


def merged(page: str, section: str) -> str:
    """The page with the section in place of the one with the same heading; the other sections stay as they are."""
    _, *parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    sections = dict.fromkeys(HEADINGS, "") | {part.partition("\n")[0]: part.strip() + "\n" for part in (*parts, section)}
    return "\n".join(["# Performance\n", *filter(None, sections.values())])


def to_json(title: str, command: str, stamp: Mapping[str, str], results: Sequence[Result]) -> str:
    """Every number."""
    report: dict[str, Any] = {
        "title": title, "command": command, "environment": stamp, "batch": BATCH, "length": LENGTH, "vocabulary": VOCABULARY,
        "bounds": BOUNDS, "loss_bounds": LOSS_BOUNDS, "rows": [dataclasses.asdict(result) for result in results],
    }  # fmt: skip
    return json.dumps(report, indent=1) + "\n"


def write(path: Path, text: str) -> None:
    """The whole file, or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


HEADINGS = ("## Forward pass", "## Training step")


def _note(training: bool) -> str:
    """What the numbers of a table mean."""
    bounds, what = (LOSS_BOUNDS, f"losses of {CHECKED} steps without dropout") if training else (BOUNDS, "logits")
    others = ", ".join(f"{precision} {bound:.0e}" for precision, bound in bounds.items() if precision != "float32")
    return (
        "Ratio: of medians, to the best stock row of the framework in the same precision; that of reference_numpy is to "
        f"torch.nn.Transformer eager. Rounds are interleaved. Every row first gave the truth's {what} within "
        f"{bounds['float32']:.0e} of the largest ({others})."
    )


def _cells(result: Result) -> list[str]:
    numbers = ((result.median_ms, ".1f"), (result.min_ms, ".1f"), (result.ratio, ".2f"), (result.compile_s, ".1f"))
    values = ["" if number is None else format(number, how) for number, how in numbers]
    if result.status != "timed":
        values[0] = result.status
    return [_label(result), *values]


def _remarks(results: Iterable[Result]) -> list[str]:
    return [f"{_label(result)}: {result.status}, {result.message}" for result in results if result.message]


def _label(result: Result) -> str:
    name = result.name or result.framework
    return name if result.precision == "float32" else f"{name}, {result.precision}"


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cpu() -> str:
    """The processor's name: Linux writes it into /proc, where `platform` does not look."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> Iterable[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
