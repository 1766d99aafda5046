"""The command `python -m benchmarks`."""

import functools
import shlex
import sys
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from reference_numpy.recipe import PAPER
from rosettaformer.cli import MISSING, MISTAKE

from . import measure, report
from .problem import BATCH, LENGTH, make, sizes

FRAMEWORKS = {"cpu": ("torch", "tf", "jax"), "cuda": ("torch", "jax")}
SIZES = ("paper_base", "tiny")


@click.command()
@click.option("--framework", "frameworks", multiple=True, help="Only torch (with the NumPy truth), tf or jax; repeat it for several.")
@click.option("--rounds", type=int, default=9, show_default=True, help="Timed calls of each row.")
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda (torch and jax; TF32 and bfloat16 too).")
@click.option("--training", is_flag=True, help="Training steps (forward, backward and update) instead of forward passes.")
@click.option("--preset", "size", default="paper_base", hidden=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every number to this file.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table into this page.")
@click.pass_context
def bench(
    context: click.Context,
    frameworks: tuple[str, ...],
    rounds: int,
    device: str,
    training: bool,
    size: str,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Time the whole forward pass of a Transformer, or its training step, ours beside the stock layers of each framework.

    A row that does not give the truth's logits, or without dropout its losses, is not timed.

    Exit codes: 0 timed, 1 a row is wrong or fails, 2 wrong usage, 3 framework missing.
    """
    _refuse(frameworks, rounds, device, size, [path for path in (json_file, markdown_file) if path])
    config = sizes(size)

    @functools.cache
    def answer() -> np.ndarray:
        """Of every framework's process: in float64 it takes longer than all that is timed."""
        task = make(config)
        return task.checked.losses() if training else task.answer()

    described, results = {}, []
    errors = Console(stderr=True)
    for framework in dict.fromkeys(frameworks or FRAMEWORKS[device]):
        with errors.status(f"measuring {framework}"):
            described[framework], found = measure.run(framework, config, answer, rounds, device, training)
        results += found
    what = f"training step (dropout {config.dropout_rate}, label smoothing {PAPER.smoothing}, Adam)" if training else "forward"
    title = f"{size} {what} on {device}, batch {BATCH}, {LENGTH}/{LENGTH} tokens, a fifth padded, median of {rounds}"
    command, stamp = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), report.environment(described)
    if json_file:
        report.write(json_file, report.to_json(title, command, stamp, results))
    if markdown_file:
        page = markdown_file.read_text() if markdown_file.exists() else ""
        report.write(markdown_file, report.merged(page, report.markdown(title, command, stamp, results, training)))
    report.render(Console(), title, stamp, results, training)
    context.exit(_exit_code([result.status for result in results], bool(frameworks)))


def _refuse(frameworks: tuple[str, ...], rounds: int, device: str, size: str, files: list[Path]) -> None:
    """Raises ValueError before anything is measured."""
    for what, given, known in (("device", [device], FRAMEWORKS), ("preset", [size], SIZES)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"{what} must be one of {', '.join(known)}; got {', '.join(unknown)}")
    if unknown := [name for name in frameworks if name not in FRAMEWORKS[device]]:
        raise ValueError(f"framework on {device} must be one of {', '.join(FRAMEWORKS[device])}; got {', '.join(unknown)}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    for path in files:
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"{path} must be a file in a folder that exists")


def _exit_code(statuses: list[str], named: bool) -> int:
    if any(status in ("wrong", "error") for status in statuses):
        return 1
    return MISSING if "missing" in statuses and (named or "timed" not in statuses) else 0


def main() -> None:
    """Runs the command; a user's mistake is one line on standard error and exit code 2."""
    try:
        bench.main(prog_name="python -m benchmarks")
    except (ValueError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(MISTAKE)


if __name__ == "__main__":
    main()
