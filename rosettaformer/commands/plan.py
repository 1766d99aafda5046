"""`rosettaformer plan`: memory and traffic of a training step on several devices, on paper."""

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
from .options import Choice, Grouped, recipe_option, section, wide_console

WIDTH = 160  # width of the tables outside a terminal
COUNT = click.IntRange(min=1)


@click.command(cls=Grouped)
@click.argument("model", shell_complete=completion.words(lambda: PRESETS, "file"))
@section(
    "Model and devices",
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the preset's config; repeatable."),
    click.option(
        "--mesh", required=True, metavar="MESH|N", help="data=8,model=4, or data=8,replicate; of N devices every strategy is compared."
    ),
    click.option("--memory", type=click.FloatRange(min=0, min_open=True), default=80, show_default=True, help="GiB of a device."),
)
@section(
    "Step",
    click.option("--rows", type=COUNT, required=True, help="Rows of the whole batch."),
    click.option("--length", type=COUNT, required=True, help="Tokens of a row that a stack computes."),
    click.option("--source-length", type=COUNT, help="Those of the encoder. [default: --length]"),
    click.option("--dtype", type=Choice(list(ITEMS)), default="float32", show_default=True, help="Of all numbers."),
    click.option("--recompute", is_flag=True, help="Compute a layer's activations again in the backward pass."),
    click.option("--backend", type=Choice(list(ENGINES)), default="torch", show_default=True, help="Whose engine it is."),
    recipe_option,
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes.")
def plan(
    model: str, settings: tuple[str, ...], mesh: str, memory: float, rows: int, length: int, source_length: int | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Say what a training step of MODEL needs of each device, before there is one: memory by what it is for, and bytes of every collective.

    MODEL is a preset, a checkpoint or a folder.

    docs/scaling.md has the formulas, and what compiled programs and traces show beside them. Bytes of a collective are those of the
    larger of what a device gives and gets.
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
    """Returns the config of a preset with these settings, or of a checkpoint. Raises ValueError if the model is neither."""
    if not Path(model).exists():
        known("preset", [model], PRESETS, "or a checkpoint that exists")
        return preset(model, **parse_settings(settings))
    if settings:
        raise ValueError(f"--set changes a preset; got the checkpoint {model}")
    from ..files.checkpoints import view

    return view(Path(model)).config
