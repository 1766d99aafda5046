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
from .options import OUT, Choice, Grouped, listed, section, wide_console
from .progress import Working

WIDTH = 140  # width of the tables outside a terminal
RANDOM = "A random one, such as 'image: b=2 h=16 w=16 c=3 float32' or 'tokens: b=2 t=7 int64 <100', repeatable; or FILE.npz with all."
FURTHER = ("gradients", "step")  # by cotangents, and of SGD and AdamW in training mode
TIMED = click.option("--time", type=Choice([*comparing.TIMES]), default="none", show_default=True, help="Forward and step, and memory.")


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
        default="",
        metavar="FILE",
        help="A TOML table of the left's names and the right's; keras-hub:FAMILY of transformers' and KerasHub's.",
    ),
    click.option("--write-rename", type=OUT, help="Write the table that was used, or the beginning of one."),
)
@section(
    "Inputs",
    click.option("--input", "inputs", multiple=True, metavar="DECLARATION|FILE", help=RANDOM),
    click.option("--axes", multiple=True, metavar="AXES", help="Their order on a side, such as 'left image: b c h w'; repeatable."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random inputs and cotangents."),
)  # fmt: skip
@section(
    "What is compared",
    listed("only", f"Only these, beside outputs and layers: {', '.join(FURTHER)}, or none.", lambda: (*FURTHER, "none")),
    click.option(
        "--dtype",
        type=Choice(["float64", "float32"]),
        default="float64",
        show_default=True,
        help="The widest that is run; what has no float64 is judged in float32 only.",
    ),
    TIMED,
    click.option("--limit", type=click.FloatRange(min=0.1), default=300.0, show_default=True, help="Seconds for one answer of a side."),
)  # fmt: skip
@section(
    "Output",
    click.option("--json", "json_file", type=OUT, help="Write everything; - prints it instead."),
    click.option("-q", "--quiet", is_flag=True, help="Only the result, no tables."),
)  # fmt: skip
def compare(
    left: str, right: str, json_file: Path | None, quiet: bool, write_rename: Path | None, inputs: tuple[str, ...], axes: tuple[str, ...],
    onlys: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Compare two models on the same weights and inputs: outputs, every layer, gradients, one step of training.

    LEFT and RIGHT are FILE.py:NAME or MODULE:NAME (a class or function that builds a model in PyTorch, Keras or Flax), CHECKPOINT@BACKEND
    (a file or folder, in torch, tf, jax or numpy), transformers:DIR or keras-hub:DIR (a folder that the library loads), an ONNX file, with
    --component a port (its FILE.py, torch, tf or jax), or two JSON reports of this command.
    Errors are in units of rounding noise: the larger of the sides' |float32 - float64|.

    Exit codes: 0 equal, 1 differs (of two reports: something got worse), 2 wrong usage or bad input, 3 backend missing.
    """
    written = [path for path in (json_file, write_rename) if path]
    files.require(written)
    named = comparing.sides_of(left, right, sides.setting(options.pop("settings")), options.pop("component"))
    if named[0].kind == "report":
        sys.exit(_versus(Path(named[0].path), Path(named[1].path), json_file, quiet))
    options |= {name: not onlys or name in onlys for name in FURTHER} | {"axes": _axes(axes)}
    arrays, options["inputs"] = ([text for text in inputs if text.endswith(".npz") is file] for file in (True, False))
    if len(arrays) > 1:
        raise ValueError(f"--input is one FILE.npz at most; got {', '.join(arrays)}")
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
    """Returns the orders of axes of the left and of the right. Raises ValueError on a text that begins with neither."""
    found: dict[str, list[str]] = {"left": [], "right": []}
    for text in texts:
        side, _, order = text.strip().partition(" ")
        if side not in found:
            raise ValueError(f"--axes must begin with left or right, as 'left image: b c h w'; got {text!r}")
        found[side].append(order)
    return [*found.values()]


def _versus(before: Path, after: Path, json_file: Path | None, quiet: bool) -> int:
    """Prints the changes between two reports and returns the exit code."""
    found = versus.versus(versus.read(before), versus.read(after))
    if json_file:
        files.write_json(json_file, found)
    if str(json_file) != "-":
        terminal.render_changes(wide_console(WIDTH), found, f"{after} against {before}", quiet)
    return 1 if found["worse"] else 0
