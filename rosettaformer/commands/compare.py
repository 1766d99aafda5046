"""`rosettaformer compare`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from ..common import atomic
from ..common.backends import needs_of
from ..common.extras import require
from ..comparison import run
from ..comparison.matching import rename_table
from ..comparison.report import comparison_text, versus
from ..comparison.running import declared_inputs, libraries, sides
from ..comparison.running.side_process import MODES
from ..files.artefacts.kinds import KINDS
from ..judge.report import files
from .options import OUT, Choice, Grouped, section, wide_console
from .progress import Working

WIDTH = 140  # width of the tables outside a terminal
RANDOM = "A random one, such as 'image: b=2 h=16 w=16 c=3 float32' or 'tokens: b=2 t=7 int64 <100'; repeatable."
WORSE = "Of two reports: noise units, and the factor, by which an error gets worse."
TIMED = click.option(
    "--time", "time_", type=Choice(["none", *MODES, "all"]), default="none", show_default=True, help="Forward and step, and memory."
)


@click.command(cls=Grouped)
@click.argument("left")
@click.argument("right")
@section(
    "Models",
    click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of both classes or functions; repeatable."),
    click.option("--component", default="", help="Of a port's file: what is compared, such as encoder_layer."),
    click.option(
        "--weights",
        help="Both have: random ones (of FILE.py:NAME the default), left's (of a checkpoint the default), right's, a .safetensors file of "
        "the left's names; or each its own (of what a library loads the default).",
    ),
    click.option(
        "--rename",
        "rename_table_",
        default="",
        metavar="FILE",
        help="A TOML table of the left's names and the right's; keras-hub:FAMILY of transformers' and KerasHub's.",
    ),
    click.option("--write-rename", type=OUT, help="Write the table that was used, or the beginning of one."),
)
@section(
    "Inputs",
    click.option("--inputs", "inputs_file", type=click.Path(path_type=Path), help="A .npz file, its names those of the arguments."),
    click.option("--input", "inputs", multiple=True, metavar="DECLARATION", help=RANDOM),
    click.option("--left-axes", multiple=True, metavar="AXES", help="The order of an input's axes on the left: 'image: b c h w'."),
    click.option("--right-axes", multiple=True, metavar="AXES", help="The same on the right."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random inputs and cotangents."),
)  # fmt: skip
@section(
    "What is compared",
    click.option("--gradients/--no-gradients", default=True, show_default=True, help="Of the sum of cotangent * output."),
    click.option("--step/--no-step", default=True, show_default=True, help="One step of SGD and of AdamW, in training mode."),
    click.option(
        "--dtype",
        type=Choice(["float64", "float32"]),
        default="float64",
        show_default=True,
        help="The widest that is run; what has no float64 is judged in float32 only.",
    ),
    TIMED,
    click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of timing."),
    click.option("--limit", type=click.FloatRange(min=0.1), default=300.0, show_default=True, help="Seconds for one answer of a side."),
    click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of each side."),
)  # fmt: skip
@section(
    "Output",
    click.option("--json", "json_file", type=OUT, help="Write everything; - prints it instead."),
    click.option("--threshold", type=click.FloatRange(min=0), default=versus.WORSE, show_default=True, help=WORSE),
    click.option("-q", "--quiet", is_flag=True, help="Only the result, no tables."),
)  # fmt: skip
def compare(
    left: str, right: str, json_file: Path | None, quiet: bool, threshold: float, write_rename: Path | None, **options: Any
) -> None:
    """Compare two models on the same weights and inputs: outputs, every layer, gradients, one step of training.

    LEFT and RIGHT are FILE.py:NAME or MODULE:NAME (a class or function that builds a model in PyTorch, Keras or Flax), CHECKPOINT@BACKEND
    (a file or folder, in torch, tf, jax or numpy), transformers:DIR or keras-hub:DIR (a folder that the library loads), an ONNX file, with
    --component a port (its FILE.py, torch, tf or jax), or two JSON reports of this command.
    Errors are in units of rounding noise: the larger of the sides' |float32 - float64|.

    Exit codes: 0 equal, 1 differs (of two reports: something got worse), 2 wrong usage or bad input, 3 backend missing.
    """
    written = [path for path in (json_file, write_rename) if path]
    files.require(written)
    given = sides.setting(options["settings"])
    named = sides.paired([sides.parse(text, given, options["component"]) for text in (left, right)])
    reports = [side for side in named if side.kind == "report"]
    if reports:
        if len(reports) == 1:
            raise ValueError(f"two reports can be compared, and two models; {reports[0].text} is a report and the other is not")
        sys.exit(_versus(Path(named[0].path), Path(named[1].path), threshold, json_file, quiet))
    _require(named)
    try:
        found = _run(named, options)
    except run.NotMatched as error:
        if write_rename:
            atomic.write_text(write_rename, error.table)
        raise
    found = {"verdict": comparison_text.verdict(found), "sentences": comparison_text.sentences(found)} | found
    if write_rename:
        atomic.write_text(write_rename, rename_table.written(found["variables"], found["layers_matched"]))
    if json_file:
        files.write_json(json_file, found)
    if str(json_file) != "-":
        comparison_text.render(_console(), found, quiet)
    if found.get("failed"):
        raise ValueError(found["failed"])
    sys.exit(1 if found["verdict"] in ("differs", comparison_text.NOTHING) else 0)


def _require(named: Sequence[sides.Side]) -> None:
    """Raises MissingBackend if what runs a side is not installed; code that builds a model says only there what it imports."""
    for side in named:
        if side.kind == "artefact":
            require(side.text, {KINDS["onnx"].extra: KINDS["onnx"].needs})
        elif side.kind == "loaded":
            libraries.require(side.name)
        elif side.kind in ("checkpoint", "component"):
            require(side.text, needs_of(side.name or side.path))


def _console() -> Console:
    return wide_console(WIDTH)


def _run(named: Sequence[sides.Side], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the report, with progress in a terminal."""
    kinds = {side.kind for side in named}
    own = "artefact" in kinds or ("loaded" in kinds and "built" not in kinds)
    chosen = options["weights"] or ("random" if kinds == {"built"} else "own" if own else "left")
    if "artefact" in kinds and chosen != "own":
        raise ValueError(f"an ONNX file keeps its own weights: --weights must be own; got {chosen!r}")
    if chosen not in ("random", "left", "right", "own") and not Path(chosen).exists():
        raise ValueError(f"--weights must be random, left, right, own or a file; got {chosen!r}")
    order = [dict(map(declared_inputs.axes_of, options[f"{which}_axes"])) for which in ("left", "right")]
    time_ = {"none": (), "all": MODES}.get(options["time_"], (options["time_"],))
    inputs = [declared_inputs.declaration(text) for text in options["inputs"]]
    for which, axes in zip(("left", "right"), order, strict=True):
        if unknown := axes.keys() - {one.name for one in inputs if one.axes}:
            raise ValueError(f"--{which}-axes names {', '.join(sorted(unknown))}, whose axes no --input declares")
    with Working("comparing") as working:
        return run.compare(
            named[0],
            named[1],
            run.Options(
                inputs=inputs,
                file=options["inputs_file"],
                axes=order,
                weights=chosen,
                rename=rename_table.read(options["rename_table_"]),
                time=time_,
                progress=working.at,
                gradients=options["gradients"] and "artefact" not in kinds,
                step=options["step"] and "artefact" not in kinds,
                **{name: options[name] for name in ("dtype", "seed", "rounds", "limit", "threads")},
            ),
        )


def _versus(before: Path, after: Path, threshold: float, json_file: Path | None, quiet: bool) -> int:
    """Prints the changes between two reports and returns the exit code."""
    found = versus.versus(versus.read(before), versus.read(after), threshold)
    if json_file:
        files.write_json(json_file, found)
    if str(json_file) == "-":
        return 1 if found["worse"] else 0
    console = _console()
    for word, colour in (("worse", "red"), ("better", "green")):
        for row in found[word] if not quiet else ():
            numbers = " -> ".join(f"{row[when]['verdict']} {comparison_text.units(row[when]['units'])}" for when in ("before", "after"))
            console.print(f"[{colour}]{word}[/] {escape(row['name'])}: {numbers}", highlight=False, soft_wrap=True)
    for word in ("appeared", "vanished"):
        for name in found[word] if not quiet else ():
            console.print(f"[yellow]{word}[/] {escape(name)}", highlight=False, soft_wrap=True)
    counts = ", ".join(f"{len(found[word])} {word}" for word in ("worse", "better", "appeared", "vanished"))
    console.print(f"{after} against {before}: {counts}", highlight=False, soft_wrap=True)
    return 1 if found["worse"] else 0
