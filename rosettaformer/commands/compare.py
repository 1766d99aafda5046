"""`rosettaformer compare`."""

import sys
from pathlib import Path
from typing import Any

import click

from reference_numpy.suggestions import known

from ..common import atomic
from ..comparison import comparing
from ..comparison.engine import sides
from ..comparison.matching import rename_table
from ..comparison.output import terminal, versus
from ..judge.report import files
from .options import OUT, Grouped, examples, listed, one_of, seconds, section, seed_of, wide_console
from .progress import Working

WIDTH = 140  # width of tables outside a terminal
FURTHER = ("gradients", "step")  # gradients of sum(cotangent * output); a step of SGD and of AdamW in training mode


@click.command(
    cls=Grouped,
    epilog=examples("compare llama/@torch transformers:llama/", "compare a.py:Net b.py:Net --input 'x: b=4 h=14 w=14 c=3 float32'"),
)
@click.argument("left")
@click.argument("right")
@section(
    "Inputs and weights",
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC|FILE",
        help="Random input, such as 'image: b=2 h=16 w=16 c=3 float32' or 'tokens: b=2 t=7 int64 <100'; repeatable. Or FILE.npz with all.",
    ),
    click.option("--axes", multiple=True, metavar="AXES", help="Axis order of a side, such as 'left image: b c h w'; repeatable."),
    click.option(
        "--weights",
        metavar="WEIGHTS",
        help="Weights of both sides: random, left, right, a .safetensors file with the left's names, or own (each keeps its own). "
        "[default: random for code, left for checkpoints and ports, own for models of libraries and ONNX files]",
    ),
    seed_of("Seed for inputs and weights."),
)
@section(
    "Models",
    click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Constructor argument of both models; repeatable."),
    click.option("--component", default="", metavar="NAME", help="Component of two ports to compare, such as encoder_layer."),
    click.option(
        "--rename", default="", metavar="FILE", help="TOML table that maps names of the left to names of the right, or keras-hub:FAMILY."
    ),
    click.option("--write-rename", type=OUT, help="Output file for the table that was used, or for a draft of one."),
)
@section(
    "Comparisons",
    listed(
        "only",
        f"Further comparisons: {', '.join(FURTHER)} or none. [default: both]",
        lambda: (*FURTHER, "none"),
    ),
    one_of("--dtype", "DTYPE", ("float64", "float32"), "float64", "Widest dtype to run: float64 or float32."),
    one_of("--time", "MODE", comparing.TIMES, "none", f"Time and memory of forward and step: {', '.join(comparing.TIMES)}."),
    seconds("--limit", 300.0, "Time limit for one request."),
)
@section(
    "Output",
    click.option("--json", "json_file", type=OUT, help="JSON file for the whole report; - prints it instead of the text."),
    click.option("-q", "--quiet", is_flag=True, help="Print the result without the tables."),
)
def compare(
    left: str, right: str, json_file: Path | None, quiet: bool, write_rename: Path | None, inputs: tuple[str, ...], axes: tuple[str, ...],
    onlys: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Compare any two models, layer by layer.

    Runs both on the same weights and inputs, and compares outputs, layers, gradients and a training
    step. Errors are in units of rounding noise: the larger |float32 - float64| of the two sides.

    \b
    LEFT and RIGHT are two of:
      FILE.py:NAME, MODULE:NAME        class or function that builds a PyTorch, Keras or Flax model
      CHECKPOINT@BACKEND               checkpoint in torch, tf, jax or numpy
      transformers:DIR, keras-hub:DIR  checkpoint that the library loads
      FILE.onnx                        exported model
      FILE.py, torch, tf, jax          ports of --component
      FILE.json                        reports of this command, to compare with each other

    Exit codes: 0 equal, 1 differs (two reports: worse), 2 invalid usage or input, 3 backend missing.
    """
    written = [path for path in (json_file, write_rename) if path]
    files.require(written)
    named = comparing.sides_of(left, right, sides.setting(options.pop("settings")), options.pop("component"))
    if named[0].kind == "report":
        sys.exit(_versus(Path(named[0].path), Path(named[1].path), json_file, quiet))
    options |= {name: not onlys or name in onlys for name in FURTHER} | {"axes": _axes(axes)}
    arrays, options["inputs"] = ([text for text in inputs if text.endswith(".npz") is file] for file in (True, False))
    if len(arrays) > 1:
        raise ValueError(f"--input accepts one .npz file; got {', '.join(arrays)}")
    known("--only", onlys, (*FURTHER, "none"))
    try:
        with Working("comparing") as working:
            found = comparing.between(named, comparing.Options(file=Path(arrays[0]) if arrays else None, **options), working.at)
    except comparing.NotMatched as error:
        if write_rename:
            atomic.write_text(write_rename, error.table)
        raise
    if write_rename:
        atomic.write_text(write_rename, rename_table.written(found["variables"], found["layers_matched"]))
    if json_file:
        files.write_json(json_file, found)
    if str(json_file) != "-":
        terminal.render(wide_console(WIDTH), found, quiet)
    if found.get("failed"):
        raise ValueError(found["failed"])
    sys.exit(1 if found["verdict"] in ("differs", terminal.NOTHING) else 0)


def _axes(texts: tuple[str, ...]) -> list[list[str]]:
    """Returns the axis orders of each side. Raises ValueError on a text that names neither side."""
    found: dict[str, list[str]] = {"left": [], "right": []}
    for text in texts:
        side, _, order = text.strip().partition(" ")
        if side not in found:
            raise ValueError(f"--axes must start with left or right, such as 'left image: b c h w'; got {text!r}")
        found[side].append(order)
    return [*found.values()]


def _versus(before: Path, after: Path, json_file: Path | None, quiet: bool) -> int:
    """Compares two reports, prints the changes and returns the exit code."""
    found = versus.versus(versus.read(before), versus.read(after))
    if json_file:
        files.write_json(json_file, found)
    if str(json_file) != "-":
        terminal.render_changes(wide_console(WIDTH), found, str(before), str(after), quiet)
    return 1 if found["worse"] else 0
