"""`rosettaformer check`."""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from reference_numpy.suggestions import known

from ..common.backends import PORTS, needs_of
from ..common.extras import lacking, require
from ..judge import checking, deviations, diagnosing
from ..judge.case import DTYPES, Case
from ..judge.checking import DEVICES, MODES
from ..judge.diagnosis import Diagnosis
from ..judge.expectation.components import OWN, without_other_layouts
from ..judge.expectation.expectation_store import shared
from ..judge.report import files, matrix
from ..judge.result import Result
from ..judge.selection import NAMES, Selection, artefacts_in, cases_for
from ..judge.status import FAILURES, Status
from ..judge.suite import all_cases
from ..judge.summary import Summary
from . import completion, words
from .artefacts import OPTIONS, artefact_options, artefact_words, expect_option
from .options import (
    IN,
    OUT,
    Grouped,
    Missing,
    announced,
    checkpoint_option,
    examples,
    expression_option,
    ignore_option,
    like_option,
    like_words,
    listed,
    memory_option,
    mesh_option,
    seconds,
    section,
    seed_option,
    until_the_end,
)
from .ports import require_ports
from .progress import Checking

Names = tuple[str, ...]
# what is tested -> the reason, and the options that it excludes
_ALONE = {
    "results": ("--results tests existing outputs", "device mode mesh"),
    "artefact": ("an exported model has its own weights, dtype and device", "grad full like mode device mesh dtype"),
}
_PLURAL = {"device": "devices", "mode": "modes", "dtype": "dtypes", "mesh": "meshes"}


@click.command(cls=Grouped, epilog=examples("check my_port.py --like llama", 'check torch --quick -k "layer_norm and not vjp"'))
@click.argument("ports", nargs=-1, metavar="[PORT]...", shell_complete=completion.words(completion.ports, "file"))
@section(
    "Test a whole model or stored outputs",
    like_option,
    checkpoint_option,
    click.option("--results", type=IN, metavar="DIR", help="Outputs that another program computed from exported golden vectors."),
    one=True,
)
@section(
    "Cases",
    listed("component", "Components to test.", completion.components),
    expression_option("Cases", completion.cases),
    listed("dtype", f"Dtypes: {', '.join(DTYPES)}.", lambda: DTYPES),
    click.option("--grad", is_flag=True, help="Gradients (components such as layer_norm_vjp), too."),
    mesh_option,
)
@section(
    "Number of cases",
    click.option("--quick", is_flag=True, help="Core cases only, in float32 unless --dtype is given."),
    click.option("--full", is_flag=True, help="Every case and gradient, in every dtype and mode."),
    one=True,
)
@section(
    "Run",
    click.option("-x", "first", is_flag=True, help="Stop at the first failure."),
    seconds("--limit", 180.0, "Time limit for one case, and for the port to start."),
    listed("device", f"Devices: {', '.join(DEVICES)}. [default: cpu]", lambda: DEVICES),
    listed("mode", f"Modes: {', '.join(MODES)}. [default: the port's own]", lambda: MODES),
    click.option(
        "--command", "commands", multiple=True, metavar="LINE", help="Command that runs the port in another environment or language."
    ),
    seed_option,
    memory_option,
)
@section("Hugging Face checkpoints and exported models", ignore_option, artefact_options, expect_option)
@section(
    "Reports and exit code",
    click.option("--json", "json_file", type=OUT, help="JSON file for every result; - prints it instead of the table."),
    click.option("--html", "html_file", type=OUT, help="HTML report, with a diagnosis of each failure, which can take minutes."),
    click.option("--junit", "junit_file", type=OUT, help="JUnit XML report, for CI servers."),
    click.option("--deviations", "declared", type=IN, metavar="FILE", help="TOML file of expected failures, with reasons."),
    click.option("--min-cases", type=click.IntRange(min=1), default=1, metavar="N", help="Fail if fewer than N outputs are compared."),
    click.option("--allow-incomplete", "incomplete", is_flag=True, help="Exit 0 even if results are missing or cases are vacuous."),
)
def check(
    ports: Names,
    commands: Names,
    results: Path | None,
    declared: Path | None,
    min_cases: int,
    incomplete: bool,
    json_file: Path | None,
    junit_file: Path | None,
    html_file: Path | None,
    limit: float,
    first: bool,
    quick: bool,
    **selection: Any,
) -> None:
    """Check ports against the reference.

    PORT is torch, tf, jax, an installed port, a Python file, an importable module or, with
    --checkpoint, an exported model such as an ONNX file. [default: torch tf jax]

    The table shows each verdict, and the port's largest error divided by NumPy's rounding error.
    Every case runs in every dtype, a whole model in float32 and its checkpoint's dtype; torch, tf
    and jax run only the core cases unless --component, -k or --full is given.
    """
    files.require([path for path in (json_file, junit_file, html_file) if path])
    if html_file:
        require("--html", {"report": ("jinja2",)})
    named = (*ports, *(f"command:{line}" for line in commands))
    if results:
        if named:
            raise ValueError(f"--results tests existing outputs, without a port; remove {', '.join(named)}")
        _refuse_beside("results", selection)
    for name, valid in (("device", DEVICES), ("mode", MODES)):
        known(name, selection[f"{name}s"], valid)
    artefacts = artefacts_in(named)
    if artefacts:
        _refuse_beside("artefact", selection)
    else:
        require_ports(ports)
        require("check", needs_of(*ports) if named else _any_of_ours())
    if quick and not selection["dtypes"]:
        selection["dtypes"] = ("float32",)
    chosen = Selection(**{name: selection[name] for name in NAMES})
    core = (quick and not chosen.checkpoint) or (not results and chosen.quick and {*named} <= {*PORTS})
    cases = announced(until_the_end(cases_for(named, chosen)))
    cases = [case for case in cases if case.core] if core else cases
    if selection["meshes"] and commands:
        raise ValueError(words.NO_MESH)
    entries = deviations.read(declared, [*cases, *all_cases(grad=True)]) if declared else []
    started = time.monotonic()
    if results:
        from ..judge.vectors.golden import judge_results

        rows = judge_results(results, cases, selection["dtypes"] or DTYPES)
    else:
        last = functools.partial(_fails, entries) if first else lambda result: False
        rows = _run(cases, named or tuple(PORTS), chosen, selection["modes"], selection["devices"], core, quick, limit, last)
    seconds = time.monotonic() - started
    summary = Summary(deviations.apply(rows, entries), min_cases, incomplete)
    files.write(summary, json_file, junit_file)
    if str(json_file) != "-":
        given = {name: selection[name] for name in ("checkpoint", "ignore", *OPTIONS)}
        more = (
            artefact_words(**given)
            if artefacts
            else like_words(**{name: selection[name] for name in ("like", "seed", "meshes", "memory", "dtypes")})
        )
        matrix.render(Console(), summary, seconds, None if selection["expect"] else more)
    if html_file:  # the diagnosis may take minutes
        whole = cases if selection["like"] or selection["meshes"] or artefacts else None
        undiagnosed = results or selection["expect"] or (selection["checkpoint"] and not artefacts)
        diagnoses = {} if undiagnosed else _diagnose(summary, entries, limit, whole)
        files.write_html(summary, html_file, () if results else named or tuple(PORTS), diagnoses)
    if lost := [f"{result.port}: {result.message}" for result in summary.results if result.status == Status.NOT_STARTED]:
        raise ValueError("; ".join(lost))
    missing = any(result.status == Status.MISSING for result in summary.results)
    sys.exit(Missing.exit_code if missing and (named or not summary.compared) else 0 if summary.conforms else 1)


def _fails(entries: Sequence[deviations.Deviation], result: Result) -> bool:
    """Returns whether a result is an unexpected failure."""
    return deviations.declare(result, entries).status in FAILURES


def _diagnose(
    summary: Summary, entries: Sequence[deviations.Deviation], limit: float, cases: Sequence[Case] | None
) -> dict[str, Diagnosis]:
    """Diagnoses the failing ports for the HTML report."""
    from . import diagnose

    failing: dict[str, dict[str, None]] = {}
    for result in summary.failed:
        if result.component:
            failing.setdefault(result.port, {})[result.component] = None
    longest = None if cases is None else diagnosing.LIMIT
    found = {}
    for port, components in failing.items():
        click.echo(words.diagnosing(port, components, longest), err=True)
        found[port] = diagnose.run(port, tuple(components), entries, answer_limit=limit, cases=cases, limit=longest)
    return found


def _any_of_ours() -> dict[str, Sequence[str]]:
    """Returns the packages of the built-in ports, if none of the ports can run."""
    needs = needs_of(*PORTS)
    return needs if all(map(lacking, needs.values())) else {}


def _refuse_beside(mode: str, given: dict[str, Any]) -> None:
    """Raises ValueError on options that do not apply to --results or to an exported model."""
    why, options = _ALONE[mode]
    if wrong := [f"--{option}" for option in options.split() if given[_PLURAL.get(option, option)]]:
        raise ValueError(f"{why}; remove {', '.join(wrong)}")


def _run(
    cases: list[Case], ports: Names, chosen: Selection, modes: Names, devices: Names, core: bool, quick: bool, limit: float,
    last: Callable[[Result], bool],
) -> list[Result]:  # fmt: skip
    """Runs the ports and shows progress."""
    every = chosen.full and not (modes or chosen.meshes)
    asked = without_other_layouts(cases, OWN) if {*ports} <= {*PORTS} and not chosen.meshes else cases
    meshes = chosen.meshes or ("",)
    runs = [f"{port} on {mesh}" if mesh else port for mesh in meshes for port in ports]
    asked = [case for case in asked if not case.mesh or case.mesh == meshes[0]]
    count = sum(dtype in case.dtypes for case in asked for dtype in chosen.dtypes or DTYPES)
    count *= (len(devices) or 1) * (len(MODES) if every else len(modes) or 1)
    with Checking(runs, count) as shown:
        if quick:
            shown.say(words.quick(chosen.dtypes))
        if chosen.like and cases:
            from ..judge.suite.like_folders import described

            shown.say(words.like(chosen.like, described(cases[0].config)))
        told = {"progress": shown.answered, "begin": shown.begin, "last": last, "store": shared()}
        return checking.run(cases, ports, chosen, modes, devices, limit=limit, quick_compile=core, **told)
