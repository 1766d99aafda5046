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
from ..judge.report import files, matrix
from ..judge.result import Result
from ..judge.selection import NAMES, Selection, artefacts_in, cases_for
from ..judge.status import FAILURES, Status
from ..judge.suite import all_cases
from ..judge.summary import Summary
from . import completion
from .artefacts import OPTIONS, artefact_options, expect_option, words
from .options import (
    IN,
    OUT,
    Grouped,
    Missing,
    announced,
    checkpoint_option,
    ignore_option,
    like_option,
    like_words,
    listed,
    memory_option,
    mesh_option,
    section,
    seed_option,
    until_the_end,
)
from .ports import require_ports
from .progress import Checking

Names = tuple[str, ...]
# a way of running -> why it takes none of these options
_ALONE = {
    "results": ("--results judges outputs that exist", "device mode mesh"),
    "artefact": (
        "an artefact has weights, a dtype and a device of its own",
        "grad full like mode device mesh dtype",
    ),
}
_PLURAL = {"device": "devices", "mode": "modes", "dtype": "dtypes", "mesh": "meshes"}


@click.command(cls=Grouped)
@click.argument("ports", nargs=-1, metavar="[PORT]...", shell_complete=completion.words(completion.ports, "file"))
@section(
    "What it is judged on, if not the cases of components",
    like_option,
    checkpoint_option,
    click.option("--results", type=IN, metavar="DIR", help="Judge the outputs in this folder, made elsewhere from exported vectors."),
    one=True,
)
@section(
    "Which cases",
    listed("component", "Only these components.", completion.components),
    click.option(
        "-k",
        "expression",
        metavar="EXPR",
        shell_complete=completion.words(completion.cases),
        help="Only cases that EXPR is true of: words joined by and, or, not, as in pytest.",
    ),
    listed("dtype", f"Only these dtypes: {', '.join(DTYPES)}. [default: all; of a model float32 and its checkpoint's]", lambda: DTYPES),
    click.option("--grad", is_flag=True, help="The gradients of everything that is differentiable, too."),
    mesh_option,
)
@section(
    "How many",
    click.option("--quick", is_flag=True, help="Core cases, in float32 unless --dtype says others."),
    click.option("--full", is_flag=True, help="Every case, gradients among them, in every dtype and every mode, or in those of --mode."),
    one=True,
)
@section(
    "How they run",
    click.option("-x", "first", is_flag=True, help="Stop at the first failure; what is left is not run."),
    click.option(
        "--limit",
        type=click.FloatRange(min=0.1),
        default=180.0,
        show_default=True,
        help="Seconds for one case, or for the start, before it counts as a hang.",
    ),
    listed("device", f"On these devices: {', '.join(DEVICES)}. [default: cpu]", lambda: DEVICES),
    listed("mode", f"In these modes: {', '.join(MODES)}. [default: the port's own]", lambda: MODES),
    click.option("--command", "commands", multiple=True, metavar="LINE", help="A port in another environment or language: this command."),
    seed_option,
    memory_option,
)
@section(
    "Reports",
    click.option("--json", "json_file", type=OUT, help="Write every result to this file; - prints it instead."),
    click.option("--html", "html_file", type=OUT, help="Write a report to read in a browser: one file, with a diagnosis of what fails."),
    click.option("--junit", "junit_file", type=OUT, help="Write the results as JUnit XML, for CI servers."),
)
@section(
    "What passes in CI",
    click.option("--deviations", "declared", type=IN, metavar="FILE", help="Failures that are accepted, with reasons (TOML)."),
    click.option("--min-cases", type=click.IntRange(min=1), default=1, metavar="N", help="Fail where fewer outputs were compared."),
    click.option(
        "--allow-incomplete",
        "incomplete",
        is_flag=True,
        help="Exit 0 although outputs are not given (--results), a port's config hides what cases are about, or nothing of a component "
        "shows.",
    ),
)
@section("A folder of Hugging Face, and exported files", ignore_option, artefact_options, expect_option)
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
    """Run every case on every PORT and print the matrix: components down, ports across.

    A PORT is torch, tf, jax, the name of an installed port, a Python file or an importable module; without one it is the first three. With
    --checkpoint it may be a file that people ship, such as an ONNX model, which has weights of its own.
    A cell holds the verdict and the error ratio: the port's largest error in units of the error that plain NumPy makes in the same
    dtype. What passes is derived from that error. Without options every case is run in every dtype and in the port's default mode, but on
    torch, tf and jax the core cases of every component; with --component or -k every case that they choose; with --full every case in
    every mode, or in those of --mode; with --quick the core cases among them in float32. Where only core cases are run, our JAX port is
    compiled without LLVM's optimisation of its machine code. The gradient of a component is one of its own (layer_norm_vjp), run with
    --grad, with --full or by its name.
    EXPR is about names such as layer_norm/large_mean-float32: -k "layer_norm and not float16". rosettaformer list cases shows them.
    """
    files.require([path for path in (json_file, junit_file, html_file) if path])
    if html_file:
        require("--html", {"report": ("jinja2",)})
    named = (*ports, *(f"command:{line}" for line in commands))
    if results:
        if named:
            raise ValueError(f"--results judges outputs that exist; it takes no port, got {', '.join(named)}")
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
        raise ValueError("--mesh needs a port that is a file, a module or a name; got --command")
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
            words(**given)
            if artefacts
            else like_words(**{name: selection[name] for name in ("like", "seed", "meshes", "memory", "dtypes")})
        )
        matrix.render(Console(), summary, seconds, None if selection["expect"] else more)
    if html_file:  # its diagnosis may take long
        whole = cases if selection["like"] or selection["meshes"] or artefacts else None
        undiagnosed = results or selection["expect"] or (selection["checkpoint"] and not artefacts)
        diagnoses = {} if undiagnosed else _diagnose(summary, entries, limit, whole)
        files.write_html(summary, html_file, () if results else named or tuple(PORTS), diagnoses)
    if lost := [f"{result.port}: {result.message}" for result in summary.results if result.status == Status.NOT_STARTED]:
        raise ValueError("; ".join(lost))
    missing = any(result.status == Status.MISSING for result in summary.results)
    sys.exit(Missing.exit_code if missing and (named or not summary.compared) else 0 if summary.conforms else 1)


def _fails(entries: Sequence[deviations.Deviation], result: Result) -> bool:
    """Whether a result is a failure that is not declared."""
    return deviations.declare(result, entries).status in FAILURES


def _diagnose(
    summary: Summary, entries: Sequence[deviations.Deviation], limit: float, cases: Sequence[Case] | None
) -> dict[str, Diagnosis]:
    """Diagnoses the ports that fail, for the report."""
    from . import diagnose

    failing: dict[str, dict[str, None]] = {}
    for result in summary.failed:
        if result.component:
            failing.setdefault(result.port, {})[result.component] = None
    longest = None if cases is None else diagnosing.LIMIT
    found = {}
    for port, components in failing.items():
        at_most = f", {longest:g} s at most" if longest else ""
        click.echo(f"diagnosing {port}: {', '.join(components)}{at_most} ...", err=True)
        found[port] = diagnose.run(port, tuple(components), entries, answer_limit=limit, cases=cases, limit=longest)
    return found


def _any_of_ours() -> dict[str, Sequence[str]]:
    """Returns what our ports need, if not even one of them has it."""
    needs = needs_of(*PORTS)
    return needs if all(map(lacking, needs.values())) else {}


def _refuse_beside(mode: str, given: dict[str, Any]) -> None:
    """Raises ValueError on options that contradict this way of running, or mean nothing for it."""
    why, options = _ALONE[mode]
    if wrong := [f"--{option}" for option in options.split() if given[_PLURAL.get(option, option)]]:
        raise ValueError(f"{why}; it takes no {', '.join(wrong)}")


def _run(
    cases: list[Case], ports: Names, chosen: Selection, modes: Names, devices: Names, core: bool, quick: bool, limit: float,
    last: Callable[[Result], bool],
) -> list[Result]:  # fmt: skip
    """Runs the ports and reports progress."""
    every = chosen.full and not (modes or chosen.meshes)
    asked = without_other_layouts(cases, OWN) if {*ports} <= {*PORTS} and not chosen.meshes else cases
    meshes = chosen.meshes or ("",)
    runs = [f"{port} on {mesh}" if mesh else port for mesh in meshes for port in ports]
    asked = [case for case in asked if not case.mesh or case.mesh == meshes[0]]
    count = sum(dtype in case.dtypes for case in asked for dtype in chosen.dtypes or DTYPES)
    count *= (len(devices) or 1) * (len(MODES) if every else len(modes) or 1)
    with Checking(runs, count) as shown:
        if quick:
            shown.say(f"--quick: core cases in {', '.join(chosen.dtypes)} only")
        if chosen.like and cases:
            from ..judge.suite.like_folders import described

            shown.say(f"--like {chosen.like}: {described(cases[0].config)}")
        told = {"progress": shown.answered, "begin": shown.begin, "last": last}
        return checking.run(cases, ports, chosen, modes, devices, limit=limit, quick_compile=core, **told)
