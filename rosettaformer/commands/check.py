"""`rosettaformer check`."""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from ..cli import MISSING
from ..conformance import deviations, runner
from ..conformance.case import DTYPES, SUITE_VERSION, Case
from ..conformance.cases import all_cases, of_components
from ..conformance.cases.gradients import gradients
from ..conformance.checkpoint import checkpoint_cases
from ..conformance.diagnosis import Diagnosis
from ..conformance.port import ENTRY_POINTS, PORTS
from ..conformance.report import files, matrix
from ..conformance.report.summary import Summary
from ..conformance.truth import COMPONENTS

__all__ = ["check"]

Names = tuple[str, ...]
DEVICES = ("cpu", "cuda", "cuda-tf32")
KINDS = "an installed port, a Python file, an importable module"
IN, OUT = click.Path(path_type=Path, exists=True), click.Path(path_type=Path, dir_okay=False)


def _choices(ctx: click.Context, option: click.Parameter, values: Names) -> Names:
    """Values given several times or separated by commas."""
    return tuple(part for value in values for part in value.split(",") if part)


def _option(name: str, help_text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", f"{name}s", multiple=True, callback=_choices, help=help_text + " Repeat it, or separate by commas.")


@click.command()
@click.argument("ports", nargs=-1, metavar="[PORT]...")
@click.option("--command", "commands", multiple=True, metavar="LINE", help="A port in another environment or language: this command.")
@click.option("--results", type=IN, metavar="DIR", help="Judge the outputs in this folder, made elsewhere from exported vectors.")
@_option("component", "Only these components.")
@_option("dtype", f"Only these dtypes: {', '.join(DTYPES)}.")
@_option("device", f"On these devices: {', '.join(DEVICES)}. [default: cpu]")
@_option("mode", "In these modes: eager, compiled. [default: the port's own]")
@click.option("--grad", is_flag=True, help="The gradients of everything that is differentiable, too.")
@click.option("--full", is_flag=True, help="Every case, gradients among them, in every mode.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Check the whole model on the weights of this canonical file.")
@click.option(
    "--limit", type=click.FloatRange(min=0.1), default=180.0, show_default=True, help="Seconds for one case before it counts as a hang."
)
@click.option("--deviations", "declared", type=IN, metavar="FILE", help="Failures that are accepted, with reasons (TOML).")
@click.option("--min-cases", type=click.IntRange(min=1), default=1, metavar="N", help="Fail where fewer outputs were compared.")
@click.option(
    "--min-version", type=click.IntRange(1, SUITE_VERSION), default=SUITE_VERSION, metavar="N",
    help=f"Conform to this version of the suite: newer cases are put, but do not fail. [default: {SUITE_VERSION}]",
)  # fmt: skip
@click.option(
    "--allow-incomplete", "incomplete", is_flag=True,
    help="Exit 0 although outputs are not given (--results), a port's config hides what cases are about, or nothing of a component shows.",
)  # fmt: skip
@click.option("--json", "json_file", type=OUT, help="Write every result to this file; - prints it instead.")
@click.option("--junit", "junit_file", type=OUT, help="Write the results as JUnit XML, for CI servers.")
@click.option("--html", "html_file", type=OUT, help="Write a report to read in a browser: one file.")
def check(
    ports: Names,
    commands: Names,
    results: Path | None,
    declared: Path | None,
    min_cases: int,
    min_version: int,
    incomplete: bool,
    json_file: Path | None,
    junit_file: Path | None,
    html_file: Path | None,
    limit: float,
    **selection: Any,
) -> None:
    """Put every case to every PORT and print the matrix: components down, ports across.

    A PORT is torch, tf, jax, the name of an installed port, a Python file or an importable module; without one it is the first three.
    A cell holds the verdict and the error ratio: the port's largest error in units of the error that plain NumPy makes in the same
    dtype. What passes is derived from that error. Without options every case is put in every dtype and in the port's default mode, but to
    torch, tf and jax the core cases of every component; with --component every case of it; with --full every case in every mode. The
    gradient of a component is one of its own (layer_norm_vjp), put with --grad, with --full or by its name.
    """
    files.require([path for path in (json_file, junit_file, html_file) if path])
    if html_file and not _importable("jinja2"):
        click.echo("Error: --html needs Jinja2: pip install 'rosettaformer[report]'", err=True)
        sys.exit(MISSING)
    named = (*ports, *(f"command:{line}" for line in commands))
    if results:
        _refuse_for_results(named, selection)
    _refuse_unknown("port", [port for port in ports if not _findable(port)], [*PORTS, KINDS])
    core = not results and all(port in PORTS for port in named)
    cases = _cases(core, **{name: selection[name] for name in ("components", "full", "checkpoint", "grad")})
    entries = deviations.read(declared, [*cases, *all_cases(grad=True)]) if declared else []
    rows = _judge(results, cases, selection["dtypes"] or DTYPES) if results else _run(cases, named or tuple(PORTS), limit, **selection)
    summary = Summary(deviations.accept_newer(deviations.apply(rows, entries), min_version), min_cases, min_version, incomplete)
    diagnoses = _diagnose(summary, entries, limit) if html_file and not (results or selection["checkpoint"]) else {}
    files.write(summary, json_file, junit_file, html_file, () if results else named or tuple(PORTS), diagnoses)
    if str(json_file) != "-":
        matrix.render(Console(), summary)
    missing = any(result.status == "missing" for result in summary.results)
    sys.exit(MISSING if missing and (named or not summary.compared) else 0 if summary.conforms else 1)


def _diagnose(summary: Summary, entries: Sequence[deviations.Deviation], limit: float) -> dict[str, Diagnosis]:
    """What is wrong with the ports that fail, for the report."""
    from . import diagnose

    failing: dict[str, dict[str, None]] = {}
    for result in summary.failed:
        if result.component:
            failing.setdefault(result.port, {})[result.component] = None
    return {port: diagnose.run(port, tuple(components), entries, limit=limit) for port, components in failing.items()}


def _findable(port: str) -> bool:
    """Whether a port of that name can be looked for; what is wrong within it is a result."""
    if port in PORTS or entry_points(group=ENTRY_POINTS, name=port) or port.startswith("command:"):
        return True
    if port.endswith(".py"):
        return Path(port).is_file()
    return _importable(port)


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _refuse_unknown(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{what} must be one of {', '.join(known)}; got {', '.join(unknown)}")


def _cases(core: bool, components: Names, full: bool, checkpoint: Path | None, grad: bool) -> list[Case]:
    """The cases that are put: those of the components, of the checkpoint, every one, or the core where that is enough."""
    _refuse_unknown("component", components, COMPONENTS)
    own = checkpoint_cases(checkpoint) if checkpoint else []
    cases = of_components([*own, *gradients(own)] if checkpoint else all_cases(grad=True), components, grad or full)
    if components:
        return cases
    return [case for case in cases if case.core] if core and not (full or checkpoint) else cases


def _refuse_for_results(ports: Names, selection: dict[str, Any]) -> None:
    """Raises ValueError on what means nothing where nothing is run."""
    if ports:
        raise ValueError(f"--results judges outputs that exist; it takes no port, got {', '.join(ports)}")
    for name in ("devices", "modes", "checkpoint"):
        if selection[name]:
            raise ValueError(f"--results judges outputs that exist; it takes no --{name.removesuffix('s')}")


def _judge(directory: Path, cases: list[Case], dtypes: Names) -> list[runner.Result]:
    from ..conformance.vectors import judge_results

    return judge_results(directory, cases, dtypes)


def _run(
    cases: list[Case], ports: Names, limit: float, dtypes: Names, devices: Names, modes: Names, full: bool, **selection: Any
) -> list[runner.Result]:
    """Runs the ports, with progress on a terminal."""
    _refuse_unknown("dtype", dtypes, DTYPES)
    _refuse_unknown("device", devices, DEVICES)
    _refuse_unknown("mode", modes, ("eager", "compiled"))
    dtypes, devices, modes = dtypes or DTYPES, devices or ("cpu",), ("all",) if full else modes or ("",)
    count = sum(dtype in case.dtypes for case in cases for dtype in dtypes) * len(ports) * len(devices)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking", total=count if modes != ("all",) else 2 * count)
        return runner.run(cases, ports, dtypes, devices, modes, limit, lambda result: progress.advance(task))
