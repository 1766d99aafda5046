"""Times the first output of a new process, without compiled programs on disk and with them."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rosettaformer.common import compile_cache

from .benchmark_report import table_lines
from .peer_process import EXPORT, Options, PeerProcess, failure, modules
from .timed_rows import Result
from .workloads import Task

TASKS = ("W1", "W2", "W3", "W5")  # a forward pass, a training step, a search, a small model
COLUMNS = ("row", "cold s", "warm s", "warm / cold", "cold with imports s", "warm with imports s")
NOTE = (
    "Time from building the model to its first output, in a fresh process. Cold: without compiled programs on disk; warm: with those of "
    "the cold run. With imports: from the start of the process. Rows that do not compile are omitted."
)


@dataclass
class First:
    """A row of a task. seconds, started: to its first output, without and with start-up."""

    task: str
    framework: str
    name: str
    peer: bool = False
    seconds: tuple[float, ...] = ()
    started: tuple[float, ...] = ()
    message: str = ""


def one_share(tasks: Sequence[Task]) -> list[Task]:
    """Keeps one share of padding, since all of them compile the same programs."""
    return [task for task in tasks if task.padding == Task.padding] or [*tasks]


def run(task: Task, options: Options) -> Iterator[First]:
    """Returns the first-output times of all of the task's rows that compile."""
    for framework in options.frameworks:
        for module in modules(framework, task):
            if module == EXPORT:  # it does not compile
                continue
            with contextlib.closing(PeerProcess(framework, module, options)) as peer:
                rows, failed = _rows(peer, task, options)
            if failed:
                yield First(task.name, framework, failed.name, message=failed.message)
            for index, row in enumerate(rows):
                wanted = not options.only or any(text in row["name"] for text in options.only)
                if wanted and row["compiles"] and not row["ceiling"]:
                    options.progress(f"{task.name}: {row['name']}")
                    yield _measured(First(task.name, framework, row["name"], row["peer"]), module, index, task, options)


def _measured(found: First, module: str, index: int, task: Task, options: Options) -> First:
    with tempfile.TemporaryDirectory() as folder:
        environment = compile_cache.variables(Path(folder)) | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
        for _ in ("cold", "warm"):
            began = time.monotonic()
            with contextlib.closing(PeerProcess(found.framework, module, options, environment)) as peer:
                _rows(peer, task, options)
                kind, answer = peer.ask("first", index)
            if kind != "answer":
                return dataclasses.replace(found, message=failure(Result(found.framework, found.name), kind, answer).message)
            found.seconds += (answer,)
            found.started += (time.monotonic() - began,)
    return found


def _rows(peer: PeerProcess, task: Task, options: Options) -> tuple[Sequence[Mapping[str, Any]], Result | None]:
    if peer.failed:
        return [], peer.failed
    kind, answer = peer.ask("rows", dataclasses.asdict(task), options.device)
    return (answer, None) if kind == "answer" else ([], failure(Result(peer.framework), kind, answer))


def render(console: Console, tables: Iterable[tuple[Task, Sequence[First]]]) -> None:
    """Renders the results for a terminal."""
    for task, rows in tables:
        table = Table(*COLUMNS, title=_title(task), title_justify="left", caption=NOTE, caption_justify="left")
        for row in rows:
            table.add_row(*_cells(row), style="red" if row.message else None)
        console.print(table)


def markdown(tables: Iterable[tuple[Task, Sequence[First]]], command: str, stamp: Mapping[str, str]) -> list[str]:
    """Renders one section per task, like `benchmark_report.markdown`."""
    result = []
    for task, rows in tables:
        lines = [f"## {_title(task)}", "", f"By `{command}`:", "", *table_lines(COLUMNS, map(_cells, rows))]
        lines += ["", NOTE, "", *(f"- {name}: {value}" for name, value in stamp.items())]
        result.append("\n".join(lines) + "\n")
    return result


def _title(task: Task) -> str:
    name, _, what = task.title.partition(": ")
    return f"First answer, {name}: {what}"


def _cells(row: First) -> list[str]:
    if row.message:
        return [row.name or row.framework, row.message, "", "", "", ""]
    (cold, warm), (cold_started, warm_started) = row.seconds, row.started
    return [row.name, f"{cold:.1f}", f"{warm:.1f}", f"{warm / cold:.2f}", f"{cold_started:.1f}", f"{warm_started:.1f}"]
