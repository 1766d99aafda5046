"""`rosettaformer plan`."""

import json
from pathlib import Path
from typing import Any

import click

from reference_numpy import TransformerConfig, preset
from reference_numpy.presets import PRESETS
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ..common.outputs import versioned
from ..common.reading import parse_settings
from ..use.scaling import plan as planned
from ..use.scaling.step import ENGINES, ITEMS, Step
from ..use.scaling.strategies import STRATEGIES, problem
from . import completion
from .options import Grouped, examples, one_of, recipe_option, section, wide_console

WIDTH = 160  # width of tables outside a terminal
COUNT = click.IntRange(min=1)


@click.command(
    cls=Grouped,
    epilog=examples(
        "plan paper_base --mesh data=8,model=4 --rows 256 --length 128", "plan llama/ --mesh 8 --rows 64 --length 2048 --dtype bfloat16"
    ),
)
@click.argument("model", shell_complete=completion.words(lambda: PRESETS, "file"))
@section(
    "Model and devices",
    click.option(
        "--mesh", required=True, metavar="MESH|N", help="Device mesh, such as data=8,model=4; or N devices, to compare all strategies."
    ),
    click.option(
        "--memory", type=click.FloatRange(min=0, min_open=True), default=80, show_default=True, metavar="GIB", help="Memory of a device."
    ),
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Field of the preset's config; repeatable."),
)
@section(
    "Step",
    click.option("--rows", type=COUNT, required=True, metavar="N", help="Rows of the global batch."),
    click.option("--length", type=COUNT, required=True, metavar="N", help="Tokens per row."),
    click.option("--source-length", type=COUNT, metavar="N", help="Source tokens per row. [default: --length]"),
    one_of("--dtype", "DTYPE", ITEMS, "float32", f"Dtype of all tensors: {', '.join(ITEMS)}."),
    click.option("--recompute", is_flag=True, help="Recompute activations in the backward pass."),
    one_of("--backend", "NAME", ENGINES, "torch", f"Backend of the training step: {', '.join(ENGINES)}."),
    recipe_option,
)
@section("Output", click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes."))
def plan(
    model: str, settings: tuple[str, ...], mesh: str, memory: float, rows: int, length: int, source_length: int | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Estimate the memory and traffic of a distributed training step.

    MODEL is a preset or a checkpoint. Prints the memory of each device by use, and the bytes of
    each collective: the larger of what a device sends and receives. docs/scaling.md has the
    formulas, and compares them with compiled programs and traces.
    """
    config = _config(model, settings)
    given: dict[str, Any] = {
        "config": config,
        "rows": rows,
        "source": source_length or length,
        "target": length,
        "recipe": PAPER.replace(**parse_settings(options.pop("recipe"), Recipe)),
    } | options
    console = wide_console(WIDTH, markup=False, highlight=False)
    if not mesh.isdigit():
        found = planned.plan(Step(mesh=Mesh.parse(mesh), **given))
        if as_json:
            click.echo(json.dumps(versioned("plan", found)))
        else:
            console.print(*planned.tables(found, memory))
        return
    meshes = {name: make(config, COUNT.convert(int(mesh), None, None)) for name, make in STRATEGIES.items()}
    all_found = {name: problem(config, each) or planned.plan(Step(mesh=each, **given)) for name, each in meshes.items()}
    if as_json:
        said = {name: {"problem": found} if isinstance(found, str) else found for name, found in all_found.items()}
        click.echo(json.dumps(versioned("plan", {"strategies": said})))
    else:
        console.print(planned.compared(all_found, memory))


def _config(model: str, settings: tuple[str, ...]) -> TransformerConfig:
    """Returns the config of a preset, with settings, or of a checkpoint.

    Raises ValueError on neither.
    """
    if not Path(model).exists():
        known("preset", [model], PRESETS, "or an existing checkpoint")
        return preset(model, **parse_settings(settings))
    if settings:
        raise ValueError(f"--set can only change a preset; {model} is a checkpoint")
    from ..files.checkpoints import view

    return view(Path(model)).config
