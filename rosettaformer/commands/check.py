"""`rosettaformer check`."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from ..cli import MISSING
from ..conformance import runner
from ..conformance.case import DTYPES, Case
from ..conformance.cases import all_cases
from ..conformance.checkpoint import checkpoint_cases
from ..conformance.port import PORTS
from ..conformance.report import matrix
from ..conformance.report.summary import Summary
from ..conformance.truth import COMPONENTS

__all__ = ["check"]

Names = tuple[str, ...]
DEVICES = ("cpu", "cuda", "cuda-tf32")


def _choices(ctx: click.Context, option: click.Parameter, values: Names) -> Names:
    """Values given several times or separated by commas."""
    return tuple(part for value in values for part in value.split(",") if part)


def _option(name: str, help_text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", f"{name}s", multiple=True, callback=_choices, help=help_text + " Repeat it, or separate by commas.")


@click.command()
@_option("component", "Only these components.")
@_option("port", f"Only these ports: {', '.join(PORTS)}, or an importable module.")
@_option("dtype", f"Only these dtypes: {', '.join(DTYPES)}.")
@_option("device", f"On these devices: {', '.join(DEVICES)}. [default: cpu]")
@_option("mode", "In these modes: eager, compiled. [default: the port's own]")
@click.option("--full", is_flag=True, help="Every case, in every mode.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Check the whole model on the weights of this canonical file.")
@click.option(
    "--limit", type=click.FloatRange(min=0.1), default=180.0, show_default=True, help="Seconds for one case before it counts as a hang."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write every result to this file; - prints it instead."
)
def check(
    components: Names,
    ports: Names,
    dtypes: Names,
    devices: Names,
    modes: Names,
    full: bool,
    checkpoint: Path | None,
    limit: float,
    json_file: Path | None,
) -> None:
    """Put every case to every port and print the matrix: components down, ports across.

    A cell holds the verdict and the error ratio: the port's largest error in units of the error that plain NumPy makes in the same
    dtype. What passes is derived from that error. Without options the core cases of every component are put, in every dtype and in each
    port's default mode; with --component every case of it; with --full every case in every mode.
    """
    _refuse_unknown("component", components, COMPONENTS)
    _refuse_unknown("port", [port for port in ports if port not in PORTS and not _importable(port)], [*PORTS, "an importable module"])
    _refuse_unknown("dtype", dtypes, DTYPES)
    _refuse_unknown("device", devices, DEVICES)
    _refuse_unknown("mode", modes, ("eager", "compiled"))
    cases = checkpoint_cases(checkpoint) if checkpoint else all_cases()
    if components:
        cases = [case for case in cases if case.component in components]
    elif not (full or checkpoint):
        cases = [case for case in cases if case.core]
    results = _run(cases, ports or tuple(PORTS), dtypes or DTYPES, devices or ("cpu",), ("all",) if full else modes or ("",), limit)
    summary = Summary(results)
    to_stdout = json_file is not None and str(json_file) == "-"
    if json_file is not None:
        _write_json(json_file, summary)
    if not to_stdout:
        matrix.render(Console(), summary)
    missing = [result for result in results if result.status == "missing"]
    if missing and (ports or not summary.compared):
        sys.exit(MISSING)
    sys.exit(0 if summary.conforms else 1)


def _importable(port: str) -> bool:
    try:
        return importlib.util.find_spec(port) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _refuse_unknown(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{what} must be one of {', '.join(known)}; got {', '.join(unknown)}")


def _run(cases: list[Case], ports: Names, dtypes: Names, devices: Names, modes: Names, limit: float) -> list[runner.Result]:
    count = sum(dtype in case.dtypes for case in cases for dtype in dtypes) * len(ports) * len(devices)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking", total=count if modes != ("all",) else 2 * count)
        return runner.run(cases, ports, dtypes, devices, modes, limit, lambda result: progress.advance(task))


def _write_json(path: Path, summary: Summary) -> None:
    text = json.dumps(summary.to_dict(), indent=1)
    if str(path) == "-":
        click.echo(text)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text + "\n")
    temporary.replace(path)
