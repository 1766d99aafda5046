"""Benchmarks our implementations against every peer in one run: `python -m bench`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from reference_numpy.suggestions import known
from rosettaformer import cli
from rosettaformer.commands.options import OUT, exit_code, listed, wide_console
from rosettaformer.commands.progress import Working
from rosettaformer.common.atomic import write_text
from rosettaformer.common.backends import needs_of
from rosettaformer.common.extras import require
from rosettaformer.common.processes import cores
from rosettaformer.comparison.timing.environment import environment
from rosettaformer.judge.report import files

from . import benchmark_report, measure, peer_process
from .answers import Reference
from .problem import make
from .timed_rows import Result
from .workloads import SCALING, WORKLOADS, Series, Task, tiny

FRAMEWORKS = {"cpu": ("numpy", "torch", "tf", "jax"), "cuda": ("torch", "jax")}
WIDTH = 160  # width of tables when not in a terminal


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@listed("workload", f"Workloads to time: {', '.join(WORKLOADS)}.")
@listed("framework", "Frameworks to time, each with its peers: numpy, torch, tf, jax.")
@click.option("--row", "only", multiple=True, metavar="TEXT", help="Time only rows with this in their name: impl_torch. Repeatable.")
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Time our rows of another checkout, too, as peers: with --row impl_torch, the ratio is that of now to then.",
)
@click.option("--scaling", is_flag=True, help="Measure time and memory by length, batch and new tokens; only that, without --workload.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Timed calls per row.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads per row. [default: all cores]")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda. On cuda, torch and jax also run in TF32 and bfloat16.")
@click.option("--size", default="base", hidden=True)
@click.option("--json", "json_file", type=OUT, help="Write all numbers to this JSON file, or to standard output (-).")
@click.option("--markdown", "markdown_file", type=OUT, help="Write the tables to this Markdown file.")
@click.option("--data", "data_folder", type=click.Path(path_type=Path, file_okay=False), help="Write the tables as JSON to this folder.")
def bench(
    workloads: tuple[str, ...], frameworks: tuple[str, ...], only: tuple[str, ...], before: Path | None, scaling: bool, rounds: int,
    threads: int | None, device: str, size: str, json_file: Path | None, markdown_file: Path | None, data_folder: Path | None,
) -> None:  # fmt: skip
    """Time our implementations against every peer, interleaved in one run.

    Workloads: W1 forward pass and W2 training step, with 0, 20 and 50 % padding; W3 greedy and W4
    beam search, all with the paper's base model; W5 a small model; W6 a long encoder, with memory;
    W7 bfloat16 weights; W8 BERT base; W9 GPT-2 small; W10 int8 searches; W11 a Llama of 100 million
    parameters: forward pass, training step, greedy search; W12 the same with 8 experts. Peers that
    are not installed are reported as missing, with the command that installs them. A row whose
    output differs from the reference's is not timed.

    Exit codes: 0 timed, 1 a row differs or fails, 2 wrong usage, 3 framework missing.
    """
    _refuse(workloads, frameworks, device, size, [path for path in (json_file, markdown_file) if path])
    require("bench", needs_of(*frameworks))
    printed = str(json_file) == "-"
    with Working("timing", usual="an hour or two for all workloads") as working:
        options = peer_process.Options(
            frameworks or FRAMEWORKS[device], rounds, threads or cores(), device, only, str(before.resolve()) if before else "", working.at
        )
        for found in _measure(workloads or (() if scaling else tuple(WORKLOADS)), scaling, size == "tiny", options):
            _write(found, None if printed else json_file, markdown_file, data_folder)
    if printed:
        _write(found, json_file, None, None)
    else:
        benchmark_report.render(wide_console(WIDTH), found)
    # a missing peer is not a failure
    statuses = [result.status for result in found.results if result.status != "missing" or not result.peer]
    sys.exit(exit_code(statuses, "timed", bool(frameworks)))


def _line() -> str:
    """Returns the command line that repeats this run."""
    return shlex.join(["python", "-m", "bench", *sys.argv[1:]])


def _measure(workloads: Sequence[str], scaling: bool, small: bool, options: peer_process.Options) -> Iterator[benchmark_report.Report]:
    """Yields the results after each task, so that an interrupted run has written them."""
    described: dict[str, str] = {}
    tables: list[tuple[Task, list[Result]]] = []
    series: list[tuple[Series, list[tuple[int, list[Result]]]]] = []

    def run(task: Task) -> list[Result]:
        results, said = measure.run(task, Reference(make(task)), options)
        described.update(said)
        return results

    def found() -> benchmark_report.Report:
        return benchmark_report.Report(_line(), options.rounds, environment(options.threads, described), tables, series)

    sized = tiny if small else lambda task: task
    for task in (sized(task) for name in workloads for task in WORKLOADS[name]):
        tables.append((task, run(task)))
        yield found()
    for kind in SCALING if scaling else ():
        series.append((kind, []))
        for task in map(sized, kind.tasks[:2] if small else kind.tasks):
            series[-1][1].append((kind.value(task), run(task)))
            yield found()


def _write(found: benchmark_report.Report, json_file: Path | None, markdown_file: Path | None, data_folder: Path | None) -> None:
    """Writes each file atomically."""
    if json_file:
        files.write_json(json_file, benchmark_report.to_dict(found))
    _merge(benchmark_report.markdown(found), markdown_file, data_folder)


def _merge(sections: Sequence[str], page: Path | None, folder: Path | None) -> None:
    """Replaces the sections of these workloads in a page and in a data folder."""
    if folder:
        benchmark_report.write(folder, sections)
    if page:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        write_text(page, benchmark_report.merged(text, sections))


def _refuse(workloads: Sequence[str], frameworks: Sequence[str], device: str, size: str, paths: list[Path]) -> None:
    """Raises ValueError for invalid options, before any measurement."""
    known("device", [device], FRAMEWORKS)
    known("size", [size], ("base", "tiny"))
    known("workload", workloads, WORKLOADS)
    known(f"framework on {device}", frameworks, FRAMEWORKS[device])
    files.require(paths)


def main(arguments: Any = None) -> None:
    """Runs the command with the exit codes of `rosettaformer`."""
    cli.main(arguments, bench, "python -m bench")


if __name__ == "__main__":
    main()
