"""`rosettaformer diagnose`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from ..common.backends import needs_of
from ..common.extras import MissingBackend, require
from ..judge import deviations, diagnosing, diagnosis
from ..judge.case import DTYPES
from ..judge.diagnosis.findings import Verdict
from ..judge.expectation.expectation_store import shared
from ..judge.report import files
from ..judge.report.matrix import render_backward, render_tree
from ..judge.selection import Selection, cases_for, refuse_without_artefacts
from ..judge.suite import all_cases
from . import completion, words
from .artefacts import OPTIONS, artefact_options
from .options import (
    IN,
    OUT,
    Grouped,
    Missing,
    announced,
    examples,
    expression_option,
    ignore_option,
    like_option,
    listed,
    memory_option,
    mesh_option,
    seconds,
    section,
    seed_option,
    until_the_end,
)
from .progress import Working

COLOURS = {Verdict.EXPLAINED: "green", Verdict.INDISTINGUISHABLE: "yellow", Verdict.FOLLOWS: "cyan", Verdict.DESCRIBED: "yellow"}


@click.command(cls=Grouped, epilog=examples("diagnose my_port.py --like llama", "diagnose my_port.py --component layer_norm"))
@click.argument("port", required=False, shell_complete=completion.words(completion.ports, "file"))
@section(
    "Cases",
    like_option,
    listed("component", "Components to diagnose.", completion.components),
    expression_option("Cases", completion.cases),
    listed("dtype", f"Dtypes: {', '.join(DTYPES)}.", lambda: DTYPES),
    mesh_option,
    click.option("--mode", default="", metavar="MODE", help="Mode of the port: eager or compiled. [default: the port's own]"),
    click.option("--deviations", "declared", type=IN, metavar="FILE", help="TOML file of expected failures, which are not diagnosed."),
)
@section(
    "Run",
    click.option(
        "--limit",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="CPU time for the search, not counting the port's. [default: none; 60 for a whole model]",
    ),
    seconds("--answer-limit", 60.0, "Time limit for one output of the port."),
    click.option("--command", metavar="LINE", help="Command that runs the port in another environment or language."),
    click.option("--json", "json_file", type=OUT, help="JSON file for the findings; - prints it instead of the text."),
    seed_option,
    memory_option,
)
@section(
    "Exported models",
    click.option("--checkpoint", type=click.Path(path_type=Path), help="Checkpoint that the model was exported from."),
    ignore_option,
    artefact_options,
)
def diagnose(
    port: str | None,
    command: str | None,
    declared: Path | None,
    json_file: Path | None,
    limit: float | None,
    answer_limit: float,
    mode: str,
    **selection: Any,
) -> None:
    """Name the bug in PORT and suggest a fix.

    Injects known bugs, other settings, dataflow changes and other constants into the reference, in
    one place or everywhere, alone and in pairs, and names those that reproduce the port's output
    on all cases of a failing component. If none does, it describes how the output differs.

    `rosettaformer explain ID` shows the page of a known bug. Exits with 0 if every case conforms,
    otherwise with 1.
    """
    if (port is None) == (command is None):
        raise ValueError("exactly one port is required: its name, its file, or --command")
    if selection["meshes"] and command:
        raise ValueError(words.NO_MESH)
    files.require([json_file] if json_file else [])
    name, chosen = f"command:{command}" if command else str(port), Selection(**selection)
    options: dict[str, Any] = {"mode": mode, "answer_limit": answer_limit, "dtypes": chosen.dtypes}
    if diagnosing.is_of_model(name, chosen):
        options["cases"] = announced(until_the_end(cases_for([name], chosen)))
    else:
        refuse_without_artefacts(**{option: selection[option] for option in ("checkpoint", "ignore", *OPTIONS)})
        options["expression"] = chosen.expression
    require("diagnose", needs_of(name))
    entries = deviations.read(declared, [*options.get("cases", ()), *all_cases(grad=True)]) if declared else []
    try:
        found = run(name, chosen.components, entries, limit=limit or diagnosing.limit_of(name, chosen), **options)
    except MissingBackend as error:
        raise Missing(f"{name} cannot run: {error}") from None
    if json_file is not None:
        files.write_json(json_file, found.to_dict())
    if str(json_file) != "-":
        _show(found)
    sys.exit(1 if found.findings or found.stopped else 0)


def run(port: str, components: Sequence[str], entries: Sequence[deviations.Deviation], **options: Any) -> diagnosis.Diagnosis:
    """Diagnoses a port and shows progress. options: see `diagnosing.run`."""
    console = Console(stderr=True)
    with Working("diagnosing", 100, unit="%", console=console) as working:

        def advance(what: str, share: float) -> None:
            working.at(f"{port}: {what}")
            working.to(100 * share)

        def say(sentence: str) -> None:
            working.at(sentence.partition("\n")[0])

        return diagnosing.run(port, components, entries, advance, say, store=shared(), **options)


def _show(found: diagnosis.Diagnosis) -> None:
    console = Console()
    for finding in found.findings:
        colour = COLOURS.get(finding.verdict, "red")
        first, *rest = finding.text.splitlines()
        dtype = f" [dim]({finding.dtype})[/]" if finding.dtype else ""
        lines = [f"[{colour}]{finding.verdict}[/] {escape(first)}{dtype}", *map(escape, rest)]
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    for divergence in found.divergences:
        render_tree(console, divergence)
    for gradients in found.gradients:
        if gradients.first:
            render_backward(console, gradients)
    if found.stopped:
        console.print(words.stopped(escape(found.stopped)), highlight=False, soft_wrap=True)
    elif not found.findings:
        console.print(words.NOTHING_TO_EXPLAIN, highlight=False)
    for step in found.next_steps:
        console.print(f"next: {escape(step)}", highlight=False, soft_wrap=True)
